// A lab's report as text for a terminal.
#pragma once

#include <string>

#include "draw/terminal.hpp"
#include "labs/lab.hpp"

namespace attend::labs {

// Broken into lines of at most `columns`: between words, and between any two Chinese characters. Line ends are kept.
std::string wrapped(const std::string& text, int columns, int indent = 0);

std::string to_terminal(const Table& table, Language language, const draw::Screen& screen);
std::string to_terminal(const MapFigure& map, Language language, const draw::Screen& screen);
std::string to_terminal(const CurvesFigure& figure, Language language, const draw::Screen& screen);

// What the learner reads before the run: title, question, the guess, the parameters. What lessons say often holds the
// answer: it comes after the run.
std::string introduction(const Lab& lab, const Arguments& arguments, Language language, const draw::Screen& screen);
// What came out, the conclusions, what lessons say, why.
std::string outcome(const Report& report, Language language, const draw::Screen& screen);
// All labs, with the time they take.
std::string list_of_labs(Language language, const draw::Screen& screen);

}  // namespace attend::labs
