/* tarn.h: all of tarn. */
#ifndef TARN_H
#define TARN_H

#include <tarn/autograd.h>
#include <tarn/base.h>
#include <tarn/convert.h>
#include <tarn/data.h>
#include <tarn/device.h>
#include <tarn/dlpack.h>
#include <tarn/engine.h>
#include <tarn/generate.h>
#include <tarn/gguf.h>
#include <tarn/grammar.h>
#include <tarn/graph.h>
#include <tarn/lora.h>
#include <tarn/model.h>
#include <tarn/nn.h>
#include <tarn/ops.h>
#include <tarn/optim.h>
#include <tarn/parallel.h>
#include <tarn/predict.h>
#include <tarn/profile.h>
#include <tarn/runs.h>
#include <tarn/safetensors.h>
#include <tarn/table.h>
#include <tarn/tensor.h>
#include <tarn/text.h>
#include <tarn/train.h>

#endif
