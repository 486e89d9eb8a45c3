"""Language models: logits next to transformers', text equal to the command's, tokenizers, conversations."""
import os
import subprocess
import tempfile
import threading
from pathlib import Path

import transformers

from support import Case, blocks, tarn, torch

TEMPLATE = "chatml"


def make_model(folder, seed):
    """A small Llama with random weights and a byte tokenizer with a chat template."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(vocab_size=258, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                                      bos_token_id=256, eos_token_id=257, tie_word_embeddings=False,
                                      initializer_range=0.5)
    network = transformers.LlamaForCausalLM(config).eval()
    network.save_pretrained(folder)
    tokenizer = tarn.Tokenizer.of_bytes()
    tarn._library.call(tarn._library.lib.tarn_tokenizer_add_tokens, tokenizer._handle, b"<|im_start|>,<|im_end|>")
    tokenizer.set_chat_template(TEMPLATE)
    tokenizer.save(folder)
    return network


class Models(Case):
    """One model for all of these tests."""

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.holder.name)
        cls.network = make_model(cls.folder, int(os.environ["TARN_PARITY_SEED"]))
        cls.model = tarn.Model.load(cls.folder, device="cpu")

    @classmethod
    def tearDownClass(cls):
        del cls.model
        cls.holder.cleanup()

    def command(self, name, *arguments, given=b""):
        done = subprocess.run([os.environ["TARN_COMMAND"], name, str(self.folder), *arguments, "--device", "cpu"],
                              input=given, capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode(errors="replace")

    def test_logits_equal_transformers(self):
        tokens = torch.randint(0, 256, (2, 9), generator=self.generator)
        with torch.no_grad():
            self.close(self.model(tarn.tensor(tokens)), self.network(tokens).logits, 1e-4)
        self.assertEqual((self.model.arch, self.model.context, self.model.vocab_size), ("llama", 256, 258))

    def test_text_is_of_the_present_weights(self):
        """A generator that is idle has keys and values of the weights that it read."""
        model, prompt = tarn.Model.load(self.folder, device="cpu"), list(range(40))
        before = model.generate_ids(prompt, max_tokens=8, ignore_eos=True)
        optimizer = tarn.optim.SGD(model, lr=0.5)
        model.loss(tarn.tensor(torch.tensor([prompt])), tarn.tensor(torch.tensor([prompt]))).backward()
        optimizer.step()
        after = model.generate_ids(prompt, max_tokens=8, ignore_eos=True)
        model.write(self.folder / "trained")
        self.assertEqual(after, tarn.Model.load(self.folder / "trained", device="cpu", tokenizer=False)
                         .generate_ids(prompt, max_tokens=8, ignore_eos=True))
        self.assertNotEqual(after, before)

    def test_a_stop_is_a_string_or_several(self):
        given = {"max_tokens": 40, "ignore_eos": True, "temperature": 1.0}  # a long text, not one character for ever
        text = self.model.generate("abcabc", **given)
        end = next(text[i:i + 2] for i in range(5, len(text)) if "\0" not in text[i:i + 2])
        self.assertEqual(self.model.generate("abcabc", **given, stop=end),
                         self.model.generate("abcabc", **given, stop=[end]))
        self.assertEqual(self.model.generate("abcabc", **given, stop=end), text[:text.index(end)])
        with self.assertRaisesRegex(ValueError, "contains a NUL character"):
            self.model.generate("abcabc", stop=["x", "a\0b"])

    def test_greedy_ids_equal_transformers(self):
        prompt = torch.randint(0, 256, (1, 12), generator=self.generator)
        wanted = self.network.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20,
                                       do_sample=False, pad_token_id=0)[0, 12:].tolist()
        wanted = wanted[:-1] if wanted[-1] == 257 else wanted
        self.assertEqual(self.model.generate_ids(prompt[0].tolist(), max_tokens=20), wanted)

    def test_prompts_of_any_kind(self):
        ids = [5, 6, 7]
        wanted = self.model.generate_ids(ids, max_tokens=6)
        for prompt in (tuple(ids), torch.tensor(ids), tarn.tensor(ids)):
            self.assertEqual(self.model.generate_ids(prompt, max_tokens=6), wanted)
        self.assertEqual(self.model.tokenizer.decode(tarn.tensor([97, 98])), "ab")

    def test_text_equals_the_commands(self):
        prompt = "".join(self.random.choice("abc xyz") for _ in range(15))
        for given, flags in (({"max_tokens": 30}, ["--temperature", "0"]),
                             ({"max_tokens": 30, "temperature": 0.9, "top_k": 40, "seed": 7, "ignore_eos": True},
                              ["--temperature", "0.9", "--seed", "7", "--ignore-eos"]),
                             ({"max_tokens": 30, "temperature": 1.5, "top_p": 0.9, "repeat_penalty": 1.3},
                              ["--temperature", "1.5", "--top-k", "0", "--top-p", "0.9", "--repeat-penalty", "1.3"])):
            wanted = self.command("generate", prompt, "--max-tokens", "30", *flags)
            self.assertEqual(self.model.generate(prompt, **given), wanted.removesuffix("\n"), flags)

    def test_streams(self):
        outputs = list(self.model.stream("hello", max_tokens=12, top_logprobs=3, ignore_eos=True))
        self.assertEqual(outputs[-1].finish_reason, "length")
        tokens = [output for output in outputs if output.token is not None]
        self.assertEqual(len(tokens), 12)
        for output in tokens:
            self.assertEqual(output.top_logprobs[0][0], output.token)  # greedy
            self.assertAlmostEqual(output.top_logprobs[0][1], output.logprob)
        text = self.model.generate("hello", max_tokens=12, ignore_eos=True)
        self.assertEqual("".join(output.text for output in outputs), text)
        first = next(iter(self.model.stream("hello", ignore_eos=True)))
        self.assertEqual(first.token, tokens[0].token)
        self.assertEqual(self.model.generate("hello", max_tokens=12, ignore_eos=True), text)

    def test_stops(self):
        text = self.model.generate("stop", max_tokens=40, ignore_eos=True, temperature=1.0)
        stop = next(text[i:i + 2] for i in range(5, len(text)) if "\0" not in text[i:i + 2])
        outputs = list(self.model.stream("stop", max_tokens=40, ignore_eos=True, temperature=1.0, stop=[stop]))
        self.assertEqual("".join(output.text for output in outputs), text[:text.index(stop)])
        self.assertEqual(outputs[-1].finish_reason, "string")
        ids = self.model.generate_ids("stop", max_tokens=40, ignore_eos=True, temperature=1.0)
        self.assertEqual(self.model.generate_ids("stop", max_tokens=40, ignore_eos=True, temperature=1.0,
                                                 stop=[ids[6]]), ids[:ids.index(ids[6])])

    def test_streams_at_the_same_time(self):
        prompts = [f"text {number}" for number in range(4)]
        wanted = [self.model.generate(prompt, max_tokens=20) for prompt in prompts]
        streams = [self.model.stream(prompt, max_tokens=20) for prompt in prompts]
        texts = [""] * 4
        for outputs in zip(*streams):
            texts = [text + output.text for text, output in zip(texts, outputs)]
        self.assertTrue(all(whole.startswith(text) for whole, text in zip(wanted, texts)))
        got = [None] * 4

        def work(number):
            got[number] = tarn.Model.load(self.folder, device="cpu").generate(prompts[number], max_tokens=20)

        threads = [threading.Thread(target=work, args=(number, )) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(got, wanted)

    def test_conversations(self):
        tokenizer = self.model.tokenizer
        messages = [{"role": "user", "content": "hi <|im_end|> there"}]
        text = tokenizer.render_chat(messages)
        self.assertTrue(text.endswith("<|im_start|>assistant\n"), text)
        ids = tokenizer.apply_chat_template(messages)
        self.assertEqual(ids.count(tokenizer.end_of_turn), 1)  # not that of the content
        other = transformers.AutoTokenizer.from_pretrained(self.folder)
        self.assertEqual(other.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True,
                                                   return_dict=False),
                         tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]))
        wanted = self.command("chat", "--max-tokens", "12", "--temperature", "0", given=b"hi\n")
        answer = self.model.chat([{"role": "user", "content": "hi"}], max_tokens=12)
        self.assertEqual(answer, wanted.removesuffix("\n"))

    def test_training_a_model(self):
        model = tarn.Model.load(self.folder, device="cpu").train()
        tokens = tarn.tensor(torch.randint(0, 256, (2, 17), generator=self.generator))
        optimizer = tarn.optim.AdamW(model, lr=1e-2)
        losses = []
        for _ in range(8):
            loss = model.loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0] / 2)
        with tempfile.TemporaryDirectory() as folder:
            model.write(folder)
            again = tarn.Model.load(folder, device="cpu", tokenizer=False)
            self.same(again["lm_head.weight"], torch.from_dlpack(model["lm_head.weight"].detach()))
            with self.assertRaisesRegex(ValueError, "without its tokenizer"):
                again.chat([{"role": "user", "content": "hi"}])

    def test_nothing_stays_behind(self):
        before = blocks()
        model = tarn.Model.load(self.folder, device="cpu")
        stream = model.stream("a", max_tokens=50, ignore_eos=True)
        next(stream)
        del model
        next(stream)
        del stream
        self.assertEqual(blocks(), before)

    def test_what_cannot_be_opened(self):
        with self.assertRaises(tarn.Error):
            tarn.Model.load(self.folder / "none")
        with self.assertRaisesRegex(ValueError, "kv_type is 'f31'; it must be model, f32"):
            tarn.Model.load(self.folder, device="cpu", kv_type="f31")


class Made(Case):
    """Models that are made, tuned and converted here."""

    def make(self, arch="llama", **more):
        sizes = {"vocab_size": 60, "context": 32, "layers": 2, "heads": 4, "hidden_size": 32, "ffn_size": 64}
        return tarn.Model.create(arch, seed=self.random.randrange(1 << 60), **sizes, **more)

    def tokens(self):
        return tarn.tensor(torch.randint(0, 60, (2, 12), generator=self.generator))

    def test_a_new_model_is_transformers(self):
        kinds = {"gpt2": {"eos": 3}, "llama": {"eos": [3, 4], "bos": 2, "kv_heads": 2, "rope_scaling": "llama3"},
                 "qwen2": {"tie_embeddings": True, "eos": None}, "qwen3": {"head_dim": 16}, "mistral": {}}
        for arch, more in kinds.items():
            model, tokens = self.make(arch, **more), self.tokens()
            self.assertEqual((model.arch, model.context, model.vocab_size), (arch, 32, 60))
            with tempfile.TemporaryDirectory() as folder:
                model.eval().write(folder)
                network = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
            self.assertEqual(network.config.model_type, arch)
            self.assertEqual(network.config.eos_token_id, more.get("eos"))
            with torch.no_grad():
                wanted = network(torch.from_dlpack(tokens)).logits
            self.close(model(tokens), wanted, 1e-4, arch)
        again = [tarn.Model.create("gpt2", vocab_size=8, context=8, layers=1, heads=1, hidden_size=8, seed=seed)
                 ["transformer.wte.weight"].tolist() for seed in (1, 1, 2)]
        self.assertEqual(again[0], again[1])
        self.assertNotEqual(again[0], again[2])

    def test_a_wrong_configuration_is_refused(self):
        for wrong in ({"width": 3}, {"has_eos": True}, {"eos_count": 2}, {"arch": "gpt2"}, {"seed_": 1}):
            with self.assertRaisesRegex((ValueError, TypeError), next(iter(wrong))):
                self.make("llama", **wrong)
        with self.assertRaisesRegex(ValueError, "rope_scaling is 'ntk'"):
            self.make("llama", rope_scaling="ntk")
        with self.assertRaisesRegex(tarn.Error, "bert"):
            self.make("bert")

    def test_adapters(self):
        model, tokens = self.make(), self.tokens()
        before = model(tokens).tolist()
        model.add_adapter(2, alpha=4, targets=["q_proj", "v_proj"], seed=5)
        self.assertEqual(model(tokens).tolist(), before)
        frozen = model["model.embed_tokens.weight"].tolist()
        optimizer = tarn.optim.AdamW(model.train(), lr=0.05)
        for _ in range(3):
            model.loss(tokens, tokens).backward()
            optimizer.step()
        del optimizer
        tuned = model.eval()(tokens)
        self.assertNotEqual(tuned.tolist(), before)
        self.assertEqual(model["model.embed_tokens.weight"].tolist(), frozen)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder, "adapter")
            model.save_adapter(place, "base/model")
            self.assertIn("base/model", (place / "adapter_config.json").read_text(encoding="utf-8"))
            other = self.make()
            other.load_state_dict({name: value for name, value in model.state_dict().items() if "lora" not in name})
            other.load_adapter(place)
            self.assertEqual(other.eval()(tokens).tolist(), tuned.tolist())
        other.merge_adapter()
        self.close(other(tokens), torch.from_dlpack(tuned.detach()), 1e-5)
        self.assertFalse(any("lora" in name for name, _ in other.named_parameters()))
        with self.assertRaises(tarn.Error):
            other.merge_adapter()

    def test_a_merged_adapter_writes_other_text(self):
        """A generator that is idle has keys and values of the weights before."""
        model, prompt = self.make(), list(range(12))
        before = model.generate_ids(prompt, max_tokens=8)
        model.add_adapter(4, seed=1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.detach().copy_(tarn.randn(*parameter.shape))
        after = model.generate_ids(prompt, max_tokens=8)
        self.assertNotEqual(after, before)
        model.merge_adapter()
        with tempfile.TemporaryDirectory() as folder:
            model.write(folder)
            again = tarn.Model.load(folder, device="cpu", tokenizer=False)
            self.assertEqual(again.generate_ids(prompt, max_tokens=8), model.generate_ids(prompt, max_tokens=8))

    def test_conversion(self):
        model, tokens = self.make().eval(), self.tokens()
        with tempfile.TemporaryDirectory() as folder:
            source, whole, small, back = (Path(folder, name) for name in ("source", "f.gguf", "q.gguf", "back"))
            model.write(source)
            tarn.convert(source, whole)
            tarn.convert(whole, back)
            tarn.convert(source, small, quantize="q8_0")
            for path, tolerance in ((whole, 1e-5), (back, 1e-5), (small, 0.05)):
                opened = tarn.Model.load(path, device="cpu", tokenizer=False)
                self.close(opened(tokens), torch.from_dlpack(model(tokens).detach()), tolerance, path.name)
            with tarn.GGUF(small) as file:
                self.assertEqual(file.dtype_name("blk.0.attn_q.weight"), "Q8_0")
            with self.assertRaisesRegex(tarn.Error, "f.gguf"):
                tarn.convert(source, whole)
            tarn.convert(source, whole, mixture="Q4_K_M", replace=True)
            with self.assertRaisesRegex(tarn.Error, "Q9"):
                tarn.convert(source, whole, mixture="Q9", replace=True)


class Tokenizers(Case):
    """Ids and text."""

    def test_training(self):
        texts = ["low lower lowest " * 20, "new newer newest " * 20]
        tokenizer = tarn.Tokenizer.train_bpe(texts, 300, special=["<s>", "</s>"])
        self.assertEqual(tokenizer.token_to_id("<s>"), 0)
        self.assertTrue(258 < len(tokenizer) <= 300)
        ids = tokenizer.encode("lowest newest <s>")
        self.assertLess(len(ids), 8)
        self.assertEqual(ids[-1], 0)
        self.assertEqual(tokenizer.decode(ids), "lowest newest <s>")
        self.assertEqual(tokenizer.hash, tarn.Tokenizer.train_bpe(texts, 300, special=["<s>", "</s>"]).hash)
        self.assertNotEqual(tokenizer.hash, tarn.Tokenizer.train_bpe(texts, 262, special=["<s>", "</s>"]).hash)
        self.assertEqual(len(tarn.Tokenizer.train_bpe(["x"], 300, special=[])), 256)
        self.assertEqual(len(tarn.Tokenizer.train_bpe(texts, 300, special=[], min_frequency=1000)), 256)
        with self.assertRaises(tarn.Error):
            tarn.Tokenizer.train_bpe(texts, 300, pattern="(")

    def test_bytes(self):
        tokenizer = tarn.Tokenizer.of_bytes()
        self.assertEqual(tokenizer.encode(b"\xc3"), [0xc3])
        self.assertEqual(tokenizer.decode_bytes([0xc3]), b"\xc3")
        self.assertEqual(tokenizer.decode([0xc3]), "\ufffd")
        text = "a\0é\0"
        self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)
        self.assertEqual("".join(tokenizer.decode_stream(tokenizer.encode(text))), text)
        with self.assertRaises(UnicodeDecodeError):
            tokenizer.decode([0xc3], errors="strict")

    def test_masks_and_documents_of_chat_templates(self):
        template = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                    "{% for d in documents or [] %}[{{ d.text }}]{% endfor %}"
                    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
        tokenizer = tarn.Tokenizer.train_bpe(["x"], 300, special=["<|im_start|>", "<|im_end|>"])
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save(folder)
            Path(folder, "chat_template.jinja").write_text(template, encoding="utf-8")
            tokenizer = tarn.Tokenizer(folder)
        self.assertEqual(tokenizer.chat_template_name, "model")
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
        ids, mask = tokenizer.apply_chat_template_with_mask(messages)
        self.assertEqual(ids, tokenizer.apply_chat_template(messages, add_generation_prompt=False))
        self.assertEqual(tokenizer.decode([token for token, is_answer in zip(ids, mask) if is_answer]),
                         "hello<|im_end|>")
        text = tokenizer.render_chat(messages, add_generation_prompt=False, documents=[{"text": "one"}])
        self.assertTrue(text.endswith("<|im_end|>\n[one]"), text)
        tokenizer.set_chat_template("chatml")
        self.assertEqual(tokenizer.chat_template_name, "chatml")

    def test_text_goes_through(self):
        text = "Grüße, \N{SNOWMAN} \N{GRINNING FACE}!"
        for tokenizer in (tarn.Tokenizer.of_bytes(), tarn.Tokenizer.of_characters(text)):
            ids = tokenizer.encode(text)
            self.assertEqual(tokenizer.decode(ids), text)
            self.assertEqual("".join(tokenizer.decode_stream(ids)), text)
            self.assertTrue(all(token < len(tokenizer) for token in ids))
        self.assertEqual(tarn.Tokenizer.of_bytes().encode("é"), [0xc3, 0xa9])
        self.assertEqual(tokenizer.token_to_id("G"), tokenizer.encode("G")[0])
        self.assertIsNone(tokenizer.token_to_id("Z"))
        self.assertIsNone(tokenizer.bos)
        with self.assertRaises(tarn.Error):
            tokenizer.encode("Z")
