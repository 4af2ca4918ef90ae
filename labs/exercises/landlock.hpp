// Landlock: the kernel lets this process open only what a view names.
#pragma once

#include "labs/exercises/file_view.hpp"

namespace attend::labs {

// Restricts this process and all that it starts; false where the kernel lacks Landlock. `own_processes`: /proc shows
// processes of the sandbox only, and may be read. System calls only.
bool restrict_files(const FileView& view, bool own_processes);

}  // namespace attend::labs
