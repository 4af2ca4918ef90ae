// Files that are truncated while they are read.
#pragma once

namespace attend::cli {

// From now on, a fault in a mapped file (SIGBUS: it was truncated, or the disk failed) ends the program with a sentence
// that names the file, and exit code 1. Other faults end it as before.
void explain_truncated_files();

}  // namespace attend::cli
