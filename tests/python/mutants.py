"""Safetensors files that are nearly right, each made from one integer.

mutant(seed, seeds_of(corpus)) is the same bytes for the same seed and corpus. A file starts as a real layout
(a model's names and dtypes, its shapes made small) or as a row of the hostile corpus, and is then changed a
few times: tensors first, text next, bytes last.
"""
import dataclasses
import json
import random
import re

from conftest import DTYPE_BITS, corpus_bytes

HEADER_BYTES_MAX = 100_000_000
SEED_BYTES_MAX = 4096  # of a row of the corpus; longer ones get their repeats cut

DTYPES = [f'"{name}"' for name in DTYPE_BITS]
ODD_DTYPES = ['"f32"', '"F33"', '"F8_E4M3FN"', '"C128"', '"I4"', '"E8M0"', '""', "null", "7", "true", "[]",
              '{"F32":null}', '{"U8":null}', '{"F32":{}}', '["F32"]', '"F\\u00332"', '"F32 "']
ODD_NUMBERS = ["-0", "-1", "02", "00", "+2", "2.0", "2e0", "1E1", "2.", ".5", "0x2", "1_0", "NaN", "Infinity",
               "-Infinity", "1e400", "1e-400", "-", "true", "null", '"2"', "[]", "{}", "18446744073709551615",
               "18446744073709551616", "9223372036854775808", "9223372036854775807", "4294967296",
               "2305843009213693952", "2305843009213693951", "0" * 20, "1" * 19, "1" * 20, "9" * 400,
               "0.0", "-0.0", "1e0", "1.5", "1e+1", "123456789012345678901234567890", "1e", "1e+", "--1"]
EXTENTS = [0, 0, 1, 2, 3, 7, 8, 16, 255, 256, 2**16, 2**31, 2**32 - 1, 2**32, 2**61 - 1, 2**61, 2**63,
           2**64 - 1]
ODD_NAMES = ["", " ", "é", "中文", "\U0001f600", "e\u0301", "a\u0000b", "a\nb", "\u2028", "\ufeff", "\uffff",
             "../../etc/passwd", "__metadata__ ", "dtype", "data_offsets", "\u007f", "\\", '"', "/",
             "x" * 300]
# As they stand in the text, without the quotes.
ODD_ESCAPES = ["\\ud800", "\\udc00", "\\ud83d\\ude00", "\\uD83D", "\\ud800\\u0041", "\\x41", "\\u12",
               "\\u00e9", "\\U00000041", "\\'", "\\0", "\\/", "\\b\\f\\n\\r\\t", "\x01", "\n", "\t", "\x7f",
               "\\", "\\u0000"]
ODD_BYTES = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf8\x88\x80\x80\x80",
             b"\xef\xbf\xbf", b"\xf0\x9f\x98\x80", b"\xef\xbb\xbf", b"\x00", b"\x80"]
BLANKS = [" ", "  ", "\n", "\t", "\r", "\r\n", " \n\t "]
ODD_BLANKS = ["\x0b", "\x0c", "\xa0", "\u2028", "\ufeff", "\0", "/**/", "//\n", "#", ","]
ODD_VALUES = ["null", "true", "0", "-1", '""', '"a"', "[]", "{}", "[[]]", "[1,2]", '{"a":1}', '"F32"', "1e5",
              '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}', '["U8",[0],[0,0]]', "1e999", "[1,]", "nul"]
SCALAR = re.compile(r'-?[0-9][-+.0-9eE]*|true|false|null|"(?:[^"\\]|\\.)*"')
NUMBER = re.compile(r"(?<=[\[,:])-?[0-9][-+.0-9eE]*")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
PUNCTUATION = re.compile(r"[\[\]{}:,]")


@dataclasses.dataclass
class Entry:
    """One tensor of a header. All parts are text as it will stand there."""
    name: str
    dtype: str
    shape: list
    offsets: list
    more: list = dataclasses.field(default_factory=list)  # further members, whole
    turn: int = 0  # which field comes first

    def copy(self):
        return Entry(self.name, self.dtype, self.shape[:], self.offsets[:], self.more[:], self.turn)

    def text(self):
        fields = [f'"dtype":{self.dtype}', f'"shape":[{",".join(self.shape)}]',
                  f'"data_offsets":[{",".join(self.offsets)}]', *self.more]
        if self.turn:
            turn = self.turn % len(fields)
            fields = fields[turn:] + fields[:turn]
        return f'{self.name}:{{{",".join(fields)}}}'

    def size(self):
        """Bytes that its shape takes; None where that is no number of bytes of a sensible size."""
        bits = DTYPE_BITS.get(self.dtype.strip('"'))
        for extent in self.shape:
            if bits is None or not extent.isdecimal():
                return None
            bits *= int(extent)
        return bits // 8 if bits is not None and bits % 8 == 0 and bits < 2**24 else None


@dataclasses.dataclass
class Draft:
    """A file in the making: what is None follows from the rest when it is put together."""
    members: list  # Entry, or text of a whole member
    text: str | None = None
    lead: bytes = b""
    padding: bytes = b""
    prefix: int | None = None
    data_bytes: int = 0
    tail: bytes = b""

    def entries(self):
        return [member for member in self.members if isinstance(member, Entry)]

    def lay_out(self):
        """Gives every tensor the place that follows from its size, one behind the other."""
        if self.text is not None:
            return
        end = 0
        for entry in self.entries():
            size = entry.size()
            if size is not None:
                entry.offsets = [str(end), str(end + size)]
                end += size
        self.data_bytes = end

    def header(self):
        if self.text is None:
            parts = [member if isinstance(member, str) else member.text() for member in self.members]
            self.text = "{" + ",".join(parts) + "}"
        return self.text


def small(shape):
    return [str(extent % 5 + 1 if extent > 8 else extent) for extent in shape]


def model(tensors, metadata=None):
    """A Draft of name -> (dtype, shape)."""
    draft = Draft([] if metadata is None else [f'"__metadata__":{json.dumps(metadata)}'])
    for name, (dtype, shape) in tensors.items():
        draft.members.append(Entry(json.dumps(name), f'"{dtype}"', small(shape), []))
    draft.lay_out()
    draft.padding = b" " * (-len(draft.header().encode()) % 8)
    draft.text = None
    return draft


def bert_tensors(layers=6, width=384):
    """The tensors of the demo model, all-MiniLM-L6-v2, in their order."""
    tensors = {"embeddings.position_ids": ("I64", [1, 512])}
    tensors |= {f"embeddings.LayerNorm.{part}": ("F32", [width]) for part in ("bias", "weight")}
    tensors |= {f"embeddings.{name}_embeddings.weight": ("F32", [rows, width])
                for name, rows in (("position", 512), ("token_type", 2), ("word", 30522))}
    dense = {"attention.output.dense": (width, width), "attention.self.key": (width, width),
             "attention.self.query": (width, width), "attention.self.value": (width, width),
             "intermediate.dense": (4 * width, width), "output.dense": (width, 4 * width)}
    for layer in range(layers):
        for name, shape in dense.items():
            if name.endswith("output.dense"):
                norm = name.replace("dense", "LayerNorm")
                tensors |= {f"encoder.layer.{layer}.{norm}.{part}": ("F32", [width])
                            for part in ("bias", "weight")}
            tensors[f"encoder.layer.{layer}.{name}.bias"] = ("F32", [shape[0]])
            tensors[f"encoder.layer.{layer}.{name}.weight"] = ("F32", list(shape))
    return tensors | {"pooler.dense.bias": ("F32", [width]), "pooler.dense.weight": ("F32", [width, width])}


def llama_tensors(layers=2):
    tensors = {f"{name}.weight": ("BF16", [128256, 4096]) for name in ("model.embed_tokens", "lm_head")}
    for layer in range(layers):
        for name in ("self_attn.q", "self_attn.k", "self_attn.o", "mlp.up", "mlp.down"):
            tensors[f"model.layers.{layer}.{name}_proj.weight"] = ("BF16", [4096, 1024])
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = ("BF16", [4096])
    return tensors | {"model.norm.weight": ("BF16", [4096])}


def moe_tensors(layers=1, experts=6):
    tensors = {}
    for layer in range(layers):
        tensors[f"model.layers.{layer}.block_sparse_moe.gate.weight"] = ("F32", [experts, 4096])
        for expert in range(experts):
            for part in ("w1", "w2", "w3"):
                tensors[f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}.weight"] = (
                    "BF16", [14336, 4096])
    return tensors


def quantised_tensors():
    return {
        "fp8.weight": ("F8_E4M3", [512, 512]), "fp8.weight_scale_inv": ("F32", [4, 4]),
        "fp8.input_scale": ("F32", []), "mx.weight": ("F4", [6, 64]), "mx.scales": ("F8_E8M0", [6, 2]),
        "mx6.weight": ("F6_E2M3", [4, 8]), "gptq.qweight": ("I32", [512, 4096]),
        "gptq.qzeros": ("I32", [4, 512]), "gptq.scales": ("F16", [32, 4096]), "gptq.g_idx": ("I32", [0]),
        "int8.weight": ("I8", [4096, 7]),
    }


def every_dtype_tensors():
    return {f"one.{dtype}": (dtype, [2, 4]) for dtype in DTYPE_BITS} | {
        "none": ("F32", [3, 0]), "scalar": ("U64", [])}


def parsed(header):
    """The Draft of a header that has nothing but proper tensors; None of another."""
    try:
        members = json.loads(header, object_pairs_hook=list, parse_int=str, parse_float=str)
        draft = Draft([])
        for name, value in members:
            if name == "__metadata__":
                draft.members.append(f'"__metadata__":{json.dumps(dict(value))}')
                continue
            fields = dict(value)
            shape, offsets = fields.pop("shape"), fields.pop("data_offsets")
            if not all(isinstance(number, str) for number in (*shape, *offsets)):
                return None
            entry = Entry(json.dumps(name), json.dumps(fields.pop("dtype")), list(shape), list(offsets))
            if fields:
                return None
            draft.members.append(entry)
        return draft
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def seed_of(content):
    """A file as a Draft; its header is text alone where it holds something odd."""
    prefix, rest = int.from_bytes(content[:8], "little"), content[8:]
    try:
        header = rest[:prefix].decode()
    except UnicodeDecodeError:
        return content
    if prefix > len(rest) or len(content) < 8:
        return content
    draft = parsed(header) or Draft([], text=header)
    draft.data_bytes = len(rest) - prefix
    return draft


def shortened(row):
    """A row of the corpus with its repeats cut until it is small; the length prefix follows them."""
    segments = row["segments"]
    total = sum(len(text) * count for text, count in segments)
    if total <= SEED_BYTES_MAX:
        return corpus_bytes(row)
    content = corpus_bytes({"segments": [[text, min(count, 100)] for text, count in segments]})
    cut = total - len(content)
    prefix = int.from_bytes(content[:8], "little")
    return max(0, prefix - cut).to_bytes(8, "little") + content[8:] if 8 + prefix <= total else content


def seeds_of(corpus):
    """What mutants are made from: (models, rows of the corpus)."""
    models = [model(every_dtype_tensors(), {"format": "pt", "é": "\n"}), model(quantised_tensors()),
              model({"a": ("F32", [2]), "b": ("U8", [3])}), model({}), model({"t": ("BF16", [4, 2])}, {}),
              model(llama_tensors(), {"format": "pt"}), model(moe_tensors()), model(llama_tensors(1)),
              model(bert_tensors(), {"format": "pt"})]
    rows = [seed_of(shortened(row)) for row in corpus]
    return models, rows


# Changes of tensors. Each gets a Draft with at least one tensor, and one of its tensors.

def escaped(rng, text):
    """The same JSON string, some of its characters as escapes."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = ""
    for at in range(0, len(units), 2):
        unit = int.from_bytes(units[at:at + 2], "big")
        plain = 0x20 <= unit < 0x7F and chr(unit) not in '"\\'
        style = "04x" if rng.random() < 0.5 else "04X"
        result += chr(unit) if plain and rng.random() < 0.7 else f"\\u{unit:{style}}"
    return f'"{result}"'


def change_offset(rng, draft, entry):
    at = rng.randrange(2)
    if len(entry.offsets) <= at or not entry.offsets[at].isdecimal():
        return
    value = int(entry.offsets[at])
    others = [int(number) for other in draft.entries() for number in other.offsets if number.isdecimal()]
    entry.offsets[at] = str(max(0, rng.choice([
        value + 1, value - 1, value + 8, value - 8, 0, rng.choice(others), draft.data_bytes, value ^ 1 << 63,
        2**64 - 1, 2**64 - value, value * 10, rng.randrange(2**rng.randrange(1, 65))])))


def shift_offsets(rng, draft, _):
    """A hole before some of the tensors, or an overlap where the shift is negative."""
    shift = rng.choice([1, 4, 8, -1, -4, 2**63, 2**64 - 8])
    for entry in draft.entries()[rng.randrange(len(draft.entries())):]:
        entry.offsets = [str(max(0, int(number) + shift)) if number.isdecimal() else number
                         for number in entry.offsets]
    if rng.random() < 0.7 and abs(shift) < 100:
        draft.data_bytes = max(0, draft.data_bytes + shift)


def exchange_offsets(rng, draft, entry):
    other = rng.choice(draft.entries())
    entry.offsets, other.offsets = other.offsets, entry.offsets


def reform_offsets(rng, _, entry):
    begin, end = (entry.offsets * 2 or ["0", "0"])[:2]
    entry.offsets = rng.choice([[end, begin], [], [begin], [begin, end, end], [rng.choice(ODD_NUMBERS), end],
                                [begin, rng.choice(ODD_NUMBERS)]])


def change_shape(rng, draft, entry):
    shape, at = entry.shape, rng.randrange(len(entry.shape) + 1)
    kind = rng.randrange(7)
    if kind == 0 or not shape:
        shape.insert(at, str(rng.choice(EXTENTS)))
    elif kind == 1:
        shape[at - 1] = str(rng.choice(EXTENTS))
    elif kind == 2:
        shape[at - 1] = rng.choice(ODD_NUMBERS)
    elif kind == 3:
        del shape[at - 1]
    elif kind == 4:
        shape[:] = [str(rng.choice(EXTENTS)) for _ in range(rng.randrange(1, 5))]
    elif kind == 5:
        shape[at:at] = ["1"] * rng.choice([1, 2, 62, 63, 64, 65, 100])
    else:
        rng.shuffle(shape)
    if rng.random() < 0.6:
        draft.lay_out()


def change_dtype(rng, draft, entry):
    entry.dtype = rng.choice(DTYPES) if rng.random() < 0.6 else rng.choice(ODD_DTYPES)
    if rng.random() < 0.6:
        draft.lay_out()


def change_name(rng, draft, entry):
    kind = rng.randrange(6)
    if kind == 0:
        entry.name = rng.choice(draft.entries()).name
    elif kind == 1:
        entry.name = json.dumps(rng.choice(ODD_NAMES), ensure_ascii=rng.random() < 0.5)
    elif kind == 2:
        entry.name = f'"{rng.choice(ODD_ESCAPES)}{entry.name.strip(chr(34))}"'
    elif kind == 3:
        entry.name = rng.choice(['"__metadata__"', '"\\u005f_metadata__"', '"__metadata"'])
    else:
        try:
            entry.name = escaped(rng, json.loads(entry.name, strict=False))
        except ValueError:
            entry.name = '"x"'


def repeat_entry(rng, draft, entry):
    """The same name once more, perhaps by other letters, with the same place or one of its own."""
    twin = entry.copy()
    if rng.random() < 0.4:
        change_name(rng, draft, twin)
    draft.members.insert(rng.randrange(len(draft.members) + 1), twin)
    if rng.random() < 0.5:
        draft.lay_out()


def add_empty(rng, draft, entry):
    place = rng.choice([*entry.offsets, "0", str(draft.data_bytes)])
    draft.members.insert(rng.randrange(len(draft.members) + 1),
                         Entry(json.dumps(rng.choice(ODD_NAMES)), rng.choice(DTYPES), ["0"], [place, place]))


def remove_entry(rng, draft, entry):
    draft.members.remove(entry)
    if rng.random() < 0.6:
        draft.lay_out()


def nested(rng, depth):
    opening = rng.choice(["[", '{"a":'])
    return opening * depth + rng.choice(["1", "[]", "null"]) + ("]" if opening == "[" else "}") * depth


def add_field(rng, _, entry):
    names = ['"x"', '"dtype"', '"shape"', '"data_offsets"', '"\\u0064type"', '"Dtype"', '""', '"x"']
    value = rng.choice([rng.choice(ODD_VALUES), rng.choice(ODD_NUMBERS), entry.dtype,
                        nested(rng, rng.choice([1, 3, 60, 120, *range(122, 134), 200]))])
    entry.more.append(f"{rng.choice(names)}:{value}")


def turn_fields(rng, _, entry):
    entry.turn = rng.randrange(1, 5)


def reorder(rng, draft, _):
    rng.shuffle(draft.members)
    if rng.random() < 0.2:
        draft.lay_out()


def as_text(rng, draft, entry):
    """One tensor in a form that is no object of the three fields."""
    fields = [entry.dtype, f'[{",".join(entry.shape)}]', f'[{",".join(entry.offsets)}]']
    names = ['"dtype"', '"shape"', '"data_offsets"']
    kind = rng.randrange(5)
    if kind == 0:
        value = f"[{','.join(fields)}]"
    elif kind == 1:
        value = f"[{','.join(rng.sample(fields, rng.randrange(4)))}]"
    elif kind == 2:
        kept = rng.sample(range(3), rng.randrange(3))
        value = "{" + ",".join(f"{names[at]}:{fields[at]}" for at in kept) + "}"
    elif kind == 3:
        value = rng.choice(ODD_VALUES)
    else:
        at = rng.randrange(3)
        fields[at] = rng.choice([*ODD_VALUES, f"[{fields[at]}]", f'"{at}"'])
        value = "{" + ",".join(map(":".join, zip(names, fields))) + "}"
    draft.members[draft.members.index(entry)] = f"{entry.name}:{value}"


def change_metadata(rng, draft, _):
    keys = ['"format"', '"k"', '""', '"\\u006b"', '"k"', '"\\ud800"', '"é"']
    pairs = []
    for _ in range(rng.randrange(4)):
        value = rng.choice(['"pt"', '""', '"\\u00e9"', '"é"'] if rng.random() < 0.8 else ODD_VALUES)
        pairs.append(f"{rng.choice(keys)}:{value}")
    value = "{" + ",".join(pairs) + "}" if rng.random() < 0.85 else rng.choice(ODD_VALUES)
    name = rng.choice(['"__metadata__"'] * 4 + ['"__meta\\u0064ata__"', '"__Metadata__"'])
    draft.members.insert(rng.randrange(len(draft.members) + 1), f"{name}:{value}")


TENSOR_CHANGES = [change_offset, change_offset, shift_offsets, exchange_offsets, reform_offsets, change_shape,
                  change_shape, change_dtype, change_dtype, change_name, change_name, repeat_entry, add_empty,
                  remove_entry, add_field, add_field, turn_fields, reorder, as_text, change_metadata]


# Changes of the text. A header may be long: they look at what follows a place in it.

def find(rng, pattern, text):
    return pattern.search(text, rng.randrange(len(text) + 1)) or pattern.search(text)


def replace(match, text, words):
    return text[:match.start()] + words + text[match.end():] if match else text


def odd_number(rng, text):
    return replace(find(rng, NUMBER, text), text, rng.choice(ODD_NUMBERS))


def odd_value(rng, text):
    return replace(find(rng, SCALAR, text), text, rng.choice(ODD_VALUES))


def escape_string(rng, text):
    match = find(rng, STRING, text)
    try:
        return replace(match, text, escaped(rng, json.loads(match.group(), strict=False))) if match else text
    except ValueError:
        return text


def odd_escape(rng, text):
    match = find(rng, STRING, text)
    return text[:match.start() + 1] + rng.choice(ODD_ESCAPES) + text[match.start() + 1:] if match else text


def blanks(rng, text):
    for _ in range(rng.randrange(1, 4)):
        match = find(rng, PUNCTUATION, text)
        if match:
            at = match.start() + rng.randrange(2)
            text = text[:at] + rng.choice(BLANKS if rng.random() < 0.85 else ODD_BLANKS) + text[at:]
    return text


def change_punctuation(rng, text):
    words = rng.choice(["", "", "[", "]", "{", "}", ",", ":", ",,"])
    return replace(find(rng, PUNCTUATION, text), text, words)


def wrap(rng, text):
    match = find(rng, SCALAR, text)
    return replace(match, text, rng.choice(["[{}]", '{{"a":{}}}', "[[{}]]"]).format(match.group())) if match \
        else text


def repeat_part(rng, text):
    begin = rng.randrange(len(text) + 1)
    end = min(len(text), begin + rng.randrange(80))
    at = rng.choice([begin, end, rng.randrange(len(text) + 1)])
    return text[:at] + text[begin:end] + text[at:]


def remove_part(rng, text):
    begin = rng.randrange(len(text) + 1)
    return text[:begin] + text[begin + rng.choice([1, 1, 2, 8, 40]):]


def around(rng, text):
    lead = rng.choice(["", *BLANKS, *ODD_BLANKS, "[", "\ufeff"])
    return lead + text + rng.choice(["", *BLANKS, *ODD_BLANKS, "{}", "]", "x", "\0"])


TEXT_CHANGES = [odd_number, odd_value, escape_string, escape_string, odd_escape, blanks, blanks, blanks,
                change_punctuation, wrap, repeat_part, remove_part, around]


# Changes of the file.

def change_bytes(rng, content):
    """Flips, replaces, takes out or puts in a few bytes, most of them where the header is."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        if not content:
            break
        at = rng.randrange(min(len(content), 8 if rng.random() < 0.1 else len(content)))
        kind = rng.randrange(5)
        if kind == 0:
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            content[at] = rng.choice(b'{}[]",:0129-\\u \n') if rng.random() < 0.7 else rng.randrange(256)
        elif kind == 2:
            del content[at:at + rng.choice([1, 1, 4])]
        elif kind == 3:
            content[at:at] = rng.choice(ODD_BYTES)
        else:
            content[at:at] = content[at:at + rng.randrange(16)]
    return bytes(content)


def change_prefix(rng, draft, length):
    rest = length + draft.data_bytes
    draft.prefix = rng.choice([length + 1, length - 1, length + 8, length - 8, 0, 1, 2, rest, rest + 1,
                               HEADER_BYTES_MAX, HEADER_BYTES_MAX + 1, 2**31, 2**32 + length, 2**63,
                               2**64 - 1, 2**64 - 8, rng.randrange(2**16),
                               length ^ 1 << rng.randrange(64)]) % 2**64


def change_ends(rng, draft):
    kind = rng.randrange(6)
    if kind == 0:
        draft.tail = rng.choice([b"\0", b" ", b"PK\x05\x06" + bytes(18), bytes(8), b"x" * 100])
    elif kind == 1:
        draft.data_bytes = max(0, draft.data_bytes - rng.choice([1, 1, 2, 8, draft.data_bytes]))
    elif kind == 2:
        blank = rng.choice([b" ", b"\0", b"\n", b"\t", b"\r", b"x", b"\x0b"])
        draft.padding = blank * rng.choice([1, 7, 8, 4000])
    elif kind == 3:
        draft.lead = rng.choice([b" ", b"\n", b"\t", b"\0", b"\xef\xbb\xbf", b"\x0b"]) * rng.choice([1, 1, 8])
    elif kind == 4:
        draft.padding = b""
    else:
        draft.padding = b" " * rng.randrange(200)


def data_of(size):
    """Bytes that tell each place below 2^16 from every other."""
    half = b"".join(at.to_bytes(2, "little") for at in range((min(size, 2**17) + 1) // 2))
    return (half + bytes(max(0, size - len(half))))[:size]


def assemble(rng, draft, cut):
    header = draft.lead + draft.header().encode("utf-8", "surrogatepass") + draft.padding
    if rng.random() < 0.06:
        change_prefix(rng, draft, len(header))
    prefix = len(header) if draft.prefix is None else draft.prefix
    content = prefix.to_bytes(8, "little") + header + data_of(draft.data_bytes) + draft.tail
    return content[:rng.randrange(len(content) + 1)] if cut else content


def mutant(seed, seeds):
    """The file of that number."""
    rng = random.Random(seed)
    models, rows = seeds
    kind = rng.random()
    # The larger ones cost more than they find: a model of a hundred tensors comes once in two hundred.
    source = rng.choice(rows) if kind < 0.3 else models[-1] if kind < 0.305 else rng.choice(models[:-1])
    if isinstance(source, bytes):
        return change_bytes(rng, source)
    members = [member if isinstance(member, str) else member.copy() for member in source.members]
    draft = dataclasses.replace(source, members=members)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3, 4])):
        entries = draft.entries()
        if entries and draft.text is None:
            rng.choice(TENSOR_CHANGES)(rng, draft, rng.choice(entries))
        elif draft.text is None:
            change_metadata(rng, draft, None)
    if rng.random() < 0.4:
        draft.lay_out()
    for _ in range(rng.choice([0, 0, 0, 0, 0, 1, 1, 2, 3])):
        draft.text = rng.choice(TEXT_CHANGES)(rng, draft.header())
    if rng.random() < 0.2:
        change_ends(rng, draft)
    content = assemble(rng, draft, cut=rng.random() < 0.02)
    return change_bytes(rng, content) if rng.random() < 0.1 else content
