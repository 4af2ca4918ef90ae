// The programs that call a learner's functions: they read cases from standard input and write answers to descriptor 3.
#pragma once

#include <string>

namespace attend::labs {

extern const char* const kPythonDriver;  // driver.py LEARNER
extern const char* const kCppDriver;     // the rest of a main file, behind an #include of the learner's

// A file to start from, with the functions still to be written: all exercises, or one of them.
std::string python_template(const std::string& exercise, bool chinese);
std::string cpp_template(const std::string& exercise, bool chinese);

}  // namespace attend::labs
