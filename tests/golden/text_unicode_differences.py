#!/usr/bin/env python3
"""Writes src/text/unicode_differences.cc: where the Unicode data behind Hugging Face `tokenizers` differs from that of
PCRE2 10.42 and utf8proc 2.8 (both Unicode 14, as is this Python's unicodedata, which the script checks).

Usage: text_unicode_differences.py > src/text/unicode_differences.cc   (needs the package `tokenizers`)
"""

import unicodedata

from tokenizers import Regex, normalizers

assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version

CODES = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf".split()
# Changed from Mn to Mc; neither is used alone (regex_syntax.cc knows only M).
MOVED = {"\U0001171e"}


def reference_members(category):
    keep = normalizers.Replace(Regex(r"[^\p{%s}]+" % category), "")
    members = set()
    for i in range(0, len(CODES), 20000):
        members |= set(keep.normalize_str("".join(CODES[i : i + 20000])))
    return members


def ranges(codes):
    out = []
    for code in sorted(map(ord, codes)):
        if out and out[-1][1] + 1 == code:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def later_normalization():
    """Characters that the reference's normal forms do not know as combining or decomposing."""
    later = set("\U00011930\U00011935")  # the parts of U+11938
    form = normalizers.NFKD()
    for char in CODES:
        samples = [char]
        if unicodedata.combining(char):
            samples += ["a" + char + "\u0316", "a\u0301" + char, "a" + char + "\u0301", "\u1161" + char]
        for sample in samples:
            if unicodedata.normalize("NFKD", sample) != sample or unicodedata.combining(char):
                if form.normalize_str(sample) != unicodedata.normalize("NFKD", sample):
                    later.add(char)
    return later


def main():
    print("// Written by tests/golden/text_unicode_differences.py; do not edit.")
    print('#include "text/unicode_differences.h"\n')
    print("#include <algorithm>\n#include <array>\n#include <iterator>\n")
    print("namespace tenon {\nnamespace {\n")
    print("struct Range {\n  char32_t first, last;\n};\n")
    print("struct Added {\n  std::string_view category;\n  std::string_view ranges;\n};\n")
    print("constexpr Added kAdded[] = {")
    for category in CATEGORIES:
        have = {c for c in CODES if unicodedata.category(c) == category}
        members = reference_members(category)
        assert have - members <= MOVED, (category, have - members)
        text = "".join(
            r"\x{%X}" % a if a == b else r"\x{%X}-\x{%X}" % (a, b) for a, b in ranges(members - have - MOVED)
        )
        if text:
            pieces = [text[i : i + 100] for i in range(0, len(text), 100)]
            print('    {"%s",\n     %s},' % (category, "\n     ".join('R"(%s)"' % piece for piece in pieces)))
    print("};\n")
    print("constexpr Range kLaterNormalization[] = {")
    cells = ["{0x%X, 0x%X}" % (a, b) for a, b in ranges(later_normalization())]
    for i in range(0, len(cells), 5):
        print("    " + ", ".join(cells[i : i + 5]) + ",")
    print("};\n\n}  // namespace\n")
    print("""std::string later_members(std::string_view property) {
  std::string ranges;
  for (const Added& added : kAdded) {
    if (added.category.starts_with(property)) ranges += added.ranges;
  }
  return ranges;
}

bool has_later_normalization(char32_t code) {
  const auto* range = std::partition_point(std::begin(kLaterNormalization), std::end(kLaterNormalization),
                                           [&](const Range& r) { return r.last < code; });
  return range != std::end(kLaterNormalization) && range->first <= code;
}

}  // namespace tenon""")


if __name__ == "__main__":
    main()
