// Runs AMX instructions on CPUs without AMX: the compiled instruction itself, caught where the CPU refuses it.
#pragma once

namespace attend::test::amx {

// From now on SIGILL executes what instruction.hpp lists, for all threads. Anything else goes to who handled SIGILL
// before. An instruction that the CPU would have refused too ends the process with a text. False, and nothing is
// changed, where the CPU lacks AVX-512, which the products are computed with.
//
// A signal takes microseconds, so an instruction met once is replaced by a jump to what executes it; where the system
// does not let us, each one goes on to be a signal.
bool install_emulator();

bool replaces_instructions();
long signals_taken();  // so far

}  // namespace attend::test::amx
