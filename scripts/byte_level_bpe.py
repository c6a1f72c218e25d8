"""A byte-level BPE tokenizer in plain Python, for the `tokenizer.json` of GPT-2 descendants such as SmolLM2.

It reads what such files usually hold: added tokens, a ByteLevel pre-tokenizer (with or without a Digits stage before
it) and ranked merges. Anything else is refused rather than tokenised differently. Standard library only; made for
prompts, not for corpora.
"""

import json
import re
import unicodedata

CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")

# The White_Space property of Unicode, which is what \\s means to these tokenizers.
SPACES = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
)


def byte_alphabet():
    """byte -> the printable character that stands for it in the vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in alphabet:
            alphabet[byte] = chr(0x100 + len(alphabet) - len(printable))
    return alphabet


def kind_of(char):
    """One of "space", "letter", "number", "other"."""
    if char in SPACES:
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(char)[0], "other")


def split_words(text):
    """The pieces of GPT-2's pattern:

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+
    """
    at = 0
    while at < len(text):
        contraction = next((c for c in CONTRACTIONS if text.startswith(c, at)), None)
        if contraction:
            end = at + len(contraction)
        else:
            first = at
            if text[at] == " " and at + 1 < len(text) and kind_of(text[at + 1]) != "space":
                first = at + 1
            kind = kind_of(text[first])
            end = first + 1
            while end < len(text) and kind_of(text[end]) == kind:
                end += 1
            if kind == "space" and end < len(text) and end - at > 1:
                end -= 1  # The last space goes to the word after it.
        yield text[at:end]
        at = end


def split_digits(text):
    """Cuts before and after every numeric character."""
    start = 0
    for at, char in enumerate(text):
        if kind_of(char) == "number":
            if start < at:
                yield text[start:at]
            yield char
            start = at + 1
    if start < len(text):
        yield text[start:]


class Tokenizer:
    """Text to token ids and back. Thread-compatible."""

    def __init__(self, description):
        """`description`: the parsed tokenizer.json. Raises ValueError for one that this code cannot follow."""
        model = description["model"]
        if model.get("type") != "BPE" or model.get("byte_fallback") or model.get("continuing_subword_prefix"):
            raise ValueError("tokenizer.json: not a plain byte-level BPE")
        if description.get("normalizer") is not None:
            raise ValueError("tokenizer.json: a normalizer is not supported")
        stage = description["pre_tokenizer"]
        stages = stage["pretokenizers"] if stage["type"] == "Sequence" else [stage]
        kinds = [s["type"] for s in stages]
        if kinds not in (["ByteLevel"], ["Digits", "ByteLevel"]) or stages[-1].get("add_prefix_space"):
            raise ValueError(f"tokenizer.json: pre-tokenizers {kinds} are not supported")
        self._single_digits = kinds[0] == "Digits"
        self._ids = model["vocab"]
        merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._tokens = {i: token for token, i in self._ids.items()}
        self._added = {entry["content"]: entry["id"] for entry in description.get("added_tokens", [])}
        self._added_texts = {i: text for text, i in self._added.items()}
        longest_first = sorted(self._added, key=len, reverse=True)
        self._added_pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if self._added else None
        self._alphabet = byte_alphabet()
        self._bytes = {char: byte for byte, char in self._alphabet.items()}

    @classmethod
    def from_file(cls, path):
        with open(path, encoding="utf-8") as file:
            return cls(json.load(file))

    def id_of(self, token):
        """The id of an added token such as "<|im_end|>", or None."""
        return self._added.get(token)

    def encode(self, text):
        """Token ids; added tokens are recognised in the text."""
        ids = []
        for part in self._added_pattern.split(text) if self._added_pattern else [text]:
            if part in self._added:
                ids.append(self._added[part])
                continue
            for piece in split_digits(part) if self._single_digits else [part]:
                for word in split_words(piece):
                    ids += self._encode_word(word)
        return ids

    def _encode_word(self, word):
        symbols = [self._alphabet[byte] for byte in word.encode("utf-8")]
        while len(symbols) > 1:
            ranks = [self._ranks.get(pair, len(self._ranks)) for pair in zip(symbols, symbols[1:])]
            best = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[best] == len(self._ranks):
                break
            symbols[best : best + 2] = [symbols[best] + symbols[best + 1]]
        return [self._ids[symbol] for symbol in symbols]

    def decode_bytes(self, ids):
        """UTF-8 bytes; a character may be cut at the end. Added tokens give their text, unknown ids nothing."""
        out = bytearray()
        for i in ids:
            if i in self._added_texts:
                out += self._added_texts[i].encode("utf-8")
            else:
                out += bytes(self._bytes[char] for char in self._tokens.get(i, ""))
        return bytes(out)

    def decode(self, ids):
        return self.decode_bytes(ids).decode("utf-8", errors="replace")
