// The commit that the program was built from; cmake/commit.cmake writes commit.cpp.
#pragma once

namespace attend::cli {

const char* commit();  // "4a5109d38d84"; empty when built from a tarball

}  // namespace attend::cli
