// Opens a page in the user's browser.
#pragma once

#include <string>

namespace attend::cli {

// Where there is a screen and a person at the terminal; whether it opens is the browser's own affair.
void open_browser(const std::string& url);

}  // namespace attend::cli
