// A report's figures as pictures of draw/: for files, and for a terminal.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "draw/picture.hpp"
#include "labs/lab.hpp"

namespace attend::labs {

draw::Picture picture_of(const MapFigure& map, Language language);
draw::Picture picture_of(const CurvesFigure& figure, Language language);

// Every figure as NAME.png and NAME.svg in `folder`, which is made; the paths written.
std::vector<std::filesystem::path> write_pictures(const Report& report, Language language,
                                                  const std::filesystem::path& folder);

}  // namespace attend::labs
