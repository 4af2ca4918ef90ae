// A lab's figures as pictures: draw/ makes PNG, SVG and drawings with characters of them.
#pragma once

#include "draw/picture.hpp"
#include "labs/report.hpp"

namespace attend::labs {

draw::Picture picture_of(const MapFigure& figure, Language language);
draw::Picture picture_of(const CurvesFigure& figure, Language language);

}  // namespace attend::labs
