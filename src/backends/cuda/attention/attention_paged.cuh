/* attention_paged.cuh: the sequences of a paged KV cache, and the keys of a row, for the kernels of attention_paged.cu
 * and attention_paged_plain.cu. */
#ifndef TARN__CUDA_ATTENTION_PAGED_CUH
#define TARN__CUDA_ATTENTION_PAGED_CUH

#include "backends/cuda/attention/attention.cuh"
#include "backends/cuda/quant/kv_q8.cuh"

/* Page table (N, pages), row starts (N + 1) and lengths (N), with any strides. */
struct paged_sequences {
    const int32_t *table, *starts, *lengths;
    int64_t table_stride[2], starts_stride, lengths_stride; /* in elements */
    int64_t tokens, table_pages, pages, window;
    int sequences;
    fault_slot fault;

    /* The page of a key; -1, and the fault reported, where the table names one that does not exist. */
    __device__ __forceinline__ int64_t page_of(int sequence, int64_t key) const
    {
        const int64_t page = table[sequence * table_stride[0] + key / TARN__KV_PAGE * table_stride[1]];
        if (page >= 0 && page < pages)
            return page;
        report_fault(fault, page, pages);
        return -1;
    }
};

/* The keys [first, end) of a row, and its sequence. A row of no sequence has none. */
struct row_keys {
    int sequence;
    int64_t first, end;

    /* Invalid row starts and lengths are reported by the row's first block, and the row has no keys. */
    __device__ __forceinline__ row_keys(const paged_sequences &s, int64_t row, bool is_reporter)
    {
        int low = 0, high = s.sequences;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (s.starts[middle * s.starts_stride] <= row)
                low = middle;
            else
                high = middle;
        }
        sequence = low, first = end = 0;
        if (s.sequences == 0)
            return;
        const int64_t start = s.starts[low * s.starts_stride], stop = s.starts[(low + 1) * s.starts_stride],
                      length = s.lengths[low * s.lengths_stride], limit = s.table_pages * TARN__KV_PAGE;
        if (length < 0 || length > limit || stop > s.tokens) {
            if (is_reporter)
                report_fault(s.fault, length, limit);
            return;
        }
        if (row < start || row >= stop)
            return;
        end = max(length - (stop - row) + 1, (int64_t)0);
        first = s.window > 0 ? max(end - s.window, (int64_t)0) : 0;
    }
};

/* Of inputs q, k, v, table, row starts, lengths. */
static inline paged_sequences paged_sequences_of(const tarn__call *call)
{
    const tarn__view *table = call->in[3], *starts = call->in[4], *lengths = call->in[5];
    paged_sequences s = {};
    s.table = data_of<const int32_t>(table), s.starts = data_of<const int32_t>(starts);
    s.lengths = data_of<const int32_t>(lengths);
    s.table_stride[0] = table->stride[0], s.table_stride[1] = table->stride[1];
    s.starts_stride = starts->stride[0], s.lengths_stride = lengths->stride[0];
    s.tokens = call->in[0]->shape[0], s.table_pages = table->shape[1], s.pages = call->in[1]->shape[0];
    s.window = ((const tarn__attention *)call->params)->window, s.sequences = (int)table->shape[0];
    s.fault = faults_of(call);
    return s;
}

#endif
