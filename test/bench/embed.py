"""Sentence embeddings by all-MiniLM-L6-v2: unit vectors float32 [384], the mean
of the hidden states of a text's tokens.  On a card by torch and transformers
when both are there, else on the processor by onnxruntime."""
import json
import os
import time

MAX_TOKENS = 128                # longer texts are cut, as the model was trained


def say(text):
    print(text, flush=True)


def has_card():
    """True if torch is here and finds a card."""
    try:
        import torch
        return torch.cuda.is_available()
    except ImportError:
        return False


def embed(texts, folder):
    """float32 [len(texts)][384]; `folder` holds the model's files."""
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    ids = [t.ids for t in tokenizer.encode_batch(texts)]
    return (embed_on_card if has_card() else embed_on_cpu)(ids, folder)


def batches(ids, rows, tokens):
    """(which texts, ids int64 [n][width], mask int64 [n][width]) of at most so
    many rows and tokens: rows of about equal length together, so that little
    is padding."""
    import numpy as np
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    at = 0
    while at < len(order):
        width = len(ids[order[min(at + rows, len(order)) - 1]])
        batch = order[at:at + max(8, min(rows, tokens // width))]
        width = len(ids[batch[-1]])
        a = np.zeros((len(batch), width), np.int64)
        mask = np.zeros((len(batch), width), np.int64)
        for row, i in enumerate(batch):
            a[row, :len(ids[i])] = ids[i]
            mask[row, :len(ids[i])] = 1
        yield batch, a, mask
        at += len(batch)


# -------------------------------------------------------------------- on a card

def embed_on_card(ids, folder):
    import numpy as np
    import torch
    from transformers import AutoModel
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModel.from_pretrained(folder).float().to(device)
    model.eval()
    vectors = np.empty((len(ids), model.config.hidden_size), np.float32)
    with torch.inference_mode(), torch.autocast(device, torch.float16):
        for batch, a, mask in batches(ids, 4096, 1 << 17):
            mask = torch.from_numpy(mask).to(device)
            hidden = model(input_ids=torch.from_numpy(a).to(device),
                           attention_mask=mask).last_hidden_state.float()
            mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
            mean /= mean.norm(dim=1, keepdim=True)
            vectors[batch] = mean.cpu().numpy()
    return vectors


# ------------------------------------------------------------ on the processor

def read_safetensors(path):
    """{name: array} of a safetensors file (8-byte length, JSON, raw data)."""
    import numpy as np
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
        data = f.read()
    header.pop("__metadata__", None)
    types = {"F32": np.float32, "F16": np.float16, "I64": np.int64}

    def array(t):
        values = np.frombuffer(data[slice(*t["data_offsets"])],
                               types[t["dtype"]]).reshape(t["shape"])
        return values.astype(np.float32) if t["dtype"] == "F16" else values

    return {name: array(t) for name, t in header.items()}


def bert_graph(weights, config):
    """The model as an ONNX graph of onnxruntime's fused transformer steps:
    ids, mask int32 [batch][length] -> hidden float32 [batch][length][d]."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper
    nodes, constants = [], []
    eps = config["layer_norm_eps"]

    def constant(name, array):
        constants.append(numpy_helper.from_array(
            np.ascontiguousarray(array), name))
        return name

    def step(op, inputs, output, outputs=(), **attributes):
        nodes.append(helper.make_node(op, inputs, [output, *outputs],
                                      domain=attributes.pop("domain",
                                                            "com.microsoft"),
                                      **attributes))
        return output

    def norm(prefix):
        return [constant(prefix + ".weight", weights[prefix + ".weight"]),
                constant(prefix + ".bias", weights[prefix + ".bias"])]

    e = "embeddings."
    # one kind of token only: its vector is added to every position's
    position = (weights[e + "position_embeddings.weight"]
                + weights[e + "token_type_embeddings.weight"][0])
    x = step("EmbedLayerNormalization",
             ["ids", "", constant("words",
                                  weights[e + "word_embeddings.weight"]),
              constant("positions", position), "", *norm(e + "LayerNorm"),
              "mask"], "embedded", ["lengths"], epsilon=eps)
    for i in range(config["num_hidden_layers"]):
        p = "encoder.layer.%d." % i
        qkv = [p + "attention.self." + n for n in ("query", "key", "value")]
        a = step("Attention",
                 [x,
                  constant(p + "qkv", np.concatenate(
                      [weights[n + ".weight"].T for n in qkv], axis=1)),
                  constant(p + "qkvb", np.concatenate(
                      [weights[n + ".bias"] for n in qkv])),
                  "mask"], p + "a",
                 num_heads=config["num_attention_heads"])

        def linear(x, name):
            return step("MatMul", [x, constant(name + ".weight",
                                               weights[name + ".weight"].T)],
                        name + ".out", domain="")

        def add_norm(x, skip, name, norm_name):
            return step("SkipLayerNormalization",
                        [x, skip, *norm(norm_name),
                         constant(name + ".bias", weights[name + ".bias"])],
                        norm_name + ".out", epsilon=eps)

        name = p + "attention.output.dense"
        x = add_norm(linear(a, name), x, name, p + "attention.output.LayerNorm")
        name = p + "intermediate.dense"
        h = step("BiasGelu", [linear(x, name),
                              constant(name + ".bias",
                                       weights[name + ".bias"])], p + "gelu")
        name = p + "output.dense"
        x = add_norm(linear(h, name), x, name, p + "output.LayerNorm")
    step("Identity", [x], "hidden", domain="")
    shape = ["batch", "length"]
    graph = helper.make_graph(
        nodes, "minilm",
        [helper.make_tensor_value_info(n, TensorProto.INT32, shape)
         for n in ("ids", "mask")],
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT,
                                       shape + [config["hidden_size"]])],
        constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)])


def embed_on_cpu(ids, folder):
    import numpy as np
    import onnxruntime
    config = json.load(open(os.path.join(folder, "config.json")))
    weights = read_safetensors(os.path.join(folder, "model.safetensors"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(
        bert_graph(weights, config).SerializeToString(), options,
        providers=["CPUExecutionProvider"])

    vectors = np.empty((len(ids), config["hidden_size"]), np.float32)
    tokens = sum(map(len, ids))
    done, texts, start, told = 0, 0, time.time(), time.time()
    for batch, a, mask in batches(ids, 64, 2048):
        hidden = session.run(["hidden"], {
            "ids": a.astype(np.int32), "mask": mask.astype(np.int32)})[0]
        mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
        vectors[batch] = mean / np.linalg.norm(mean, axis=1)[:, None]
        texts += len(batch)
        done += int(mask.sum())
        if time.time() - told > 30:
            told = time.time()
            rate = done / (told - start)
            say("  %d of %d texts, %.0f tokens/s, %.0f s to go"
                % (texts, len(ids), rate, (tokens - done) / rate))
    return vectors
