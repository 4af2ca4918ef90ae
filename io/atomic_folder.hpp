// Folders that appear whole: built beside their place and put there by one rename.
#pragma once

#include <filesystem>

#include "io/temporary.hpp"

namespace attend::io {

// Puts the folder `from`, with all that is in it, at `to`: the files reach the disk before the name does. What was at
// `to` is there until the new one is, and goes away after; where both cannot be exchanged at once (an old file system),
// it stands under ".attend-old-NAME" in between. Both lie in one file system.
void move_folder_atomically(const std::filesystem::path& from, const std::filesystem::path& to);

// Ends what a killed move_folder_atomically left on a file system without exchange: an old folder goes back to its
// place if that is empty, and away if it is not.
void restore_folder(const std::filesystem::path& to);

// The way of those file systems; the one above uses it when it must.
void move_folder_in_two_steps(const std::filesystem::path& from, const std::filesystem::path& to);

// A folder to be filled at path() and put at `target` by commit(). Without that nothing of it stays.
class NewFolder {
 public:
  // FileError if something is at `target` and `replace` is false, or the folder around it cannot be written.
  NewFolder(const std::filesystem::path& target, bool replace);

  const std::filesystem::path& path() const { return temporary_.path(); }
  void commit();

 private:
  std::filesystem::path target_;
  bool replace_;
  Temporary temporary_;
};

}  // namespace attend::io
