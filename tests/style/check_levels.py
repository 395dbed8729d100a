#!/usr/bin/env python3
"""Only functions whose signature names the level V4 contain AVX-512 (kernels/core/cpu_level.hpp), and some do.

    check_levels.py LIBRARY ...       disassembles by objdump; exit 1 on a fault
    check_levels.py --self-test
"""
import re
import subprocess
import sys

IS_AVX512 = re.compile(r"%zmm|%k[0-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b")


def functions_of(lines):
    """The signatures of the functions that contain AVX-512, in a disassembly."""
    found, function = set(), ""
    for line in lines:
        if begin := re.match(r"[0-9a-f]+ <(.*)>:$", line.rstrip()):
            function = begin[1]
        elif IS_AVX512.search(line):
            found.add(function)
    return found


def faults_of(found):
    leaked = sorted(name for name in found if not re.search(r"\btessera::kernels::V4\b", name))
    faults = [f"AVX-512 outside of the level V4: {name}" for name in leaked]
    return faults if found else ["no AVX-512 at all: the level V4 is empty, or objdump prints otherwise"]


def self_test():
    own = "0000 <void tessera::kernels::F::operator()(tessera::kernels::V4, int) const>:"
    shared = "0010 <Kokkos::Impl::helper(int)>:"
    wide, masked, upper, narrow = (f"   4:\tvaddps {r},%ymm1,%ymm2" for r in ("%zmm3", "(%rax){%k1}", "%ymm17", "%ymm15"))
    assert not faults_of(functions_of([own, wide, shared, narrow]))
    for leak in (wide, masked, upper):
        assert faults_of(functions_of([own, wide, shared, leak])) == ["AVX-512 outside of the level V4: Kokkos::Impl::helper(int)"]
    assert faults_of(functions_of([own, narrow]))


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    found = set()
    for library in sys.argv[1:]:
        with subprocess.Popen(["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", library], stdout=subprocess.PIPE, text=True) as objdump:
            found |= functions_of(objdump.stdout)
        if objdump.returncode:
            sys.exit(f"check_levels: objdump {library} failed")
    faults = faults_of(found)
    print("\n".join(faults) or f"{len(found)} functions with AVX-512, all of the level V4")
    sys.exit(bool(faults))
