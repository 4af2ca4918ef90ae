#!/usr/bin/env bash
# Checks that each object built for an instruction set defines one global symbol, its kernel table. A weak one, such as
# an inline function shared with the rest, could be linked in its AVX form into the base path.
# usage: check_symbols.sh <object>...; objects outside src/cpu/isa/ are passed over
set -euo pipefail

checked=0
bad=0
for object in "$@"; do
  [[ $object == */cpu/isa/* ]] || continue
  isa=$(basename "$object")
  isa=${isa%%.*}
  table=" T attend::kernels_$isa()"
  symbols=$(nm --demangle --defined-only --extern-only "$object")
  [[ $symbols == *"$table"* ]] || {
    echo "$object: does not define$table"
    bad=1
  }
  # DW.ref.*: a pointer to the run-time's exception handler, data that is the same in every object.
  while read -r _ type name; do
    case " $type $name" in
      "$table" | " V DW.ref."*) ;;
      *)
        echo "$object: defines '$type $name', expected nothing but$table"
        bad=1
        ;;
    esac
  done <<<"$symbols"
  checked=$((checked + 1))
done
((checked > 0)) || {
  echo "no object of src/cpu/isa/ was given: nothing was checked"
  exit 1
}
echo "$checked objects checked"
exit $bad
