// The system's folders, the program's own and those asked for, as steps that build a root of them.
#include "labs/exercises/file_view.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "io/environment.hpp"

namespace attend::labs {
namespace {

namespace fs = std::filesystem;

// Programs, libraries and headers; no settings but the loader's.
constexpr const char* kSystem[] = {"/usr",
                                   "/bin",
                                   "/sbin",
                                   "/lib",
                                   "/lib32",
                                   "/lib64",
                                   "/libx32",
                                   "/opt",
                                   "/nix/store",
                                   "/gnu/store",
                                   "/etc/alternatives",
                                   "/etc/ld.so.cache",
                                   "/etc/ld.so.conf",
                                   "/etc/ld.so.conf.d",
                                   "/etc/localtime",
                                   "/sys/devices/system/cpu"};
constexpr const char* kDevices[] = {"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"};
constexpr int kMaxLinks = 40;  // of one path, as in the kernel

bool inside(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

// Paths without links, and the links on the way to them.
struct Resolved {
  std::set<fs::path> paths;
  std::map<fs::path, fs::path> links;

  void add(const fs::path& path) {
    std::deque<fs::path> rest(path.begin(), path.end());
    fs::path at = "/";
    std::error_code error;
    for (int followed = 0; !rest.empty();) {
      const fs::path part = rest.front(), next = (at / part).lexically_normal();
      rest.pop_front();
      if (!fs::is_symlink(next, error)) {
        at = next;
        continue;
      }
      const fs::path leads = fs::read_symlink(next, error);
      if (error || ++followed > kMaxLinks) return;
      links[next] = leads;
      if (leads.is_absolute()) at = "/";
      rest.insert(rest.begin(), leads.begin(), leads.end());
    }
    if (at.filename().empty()) at = at.parent_path();
    if (fs::exists(at, error)) paths.insert(at);
  }
};

// Adds the folders above `path`, then the step itself.
void add_step(FileView& view, std::set<fs::path>& made, FileView::Step step) {
  fs::path at = "/";
  for (const fs::path& part : fs::path(step.target).parent_path().relative_path()) {
    at /= part;
    if (made.insert(at).second) view.steps.push_back({FileView::Step::Kind::folder, at.string(), {}});
  }
  view.steps.push_back(std::move(step));
}

void add_mount(FileView& view, std::set<fs::path>& made, const fs::path& path, FileView::Step::Kind kind) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  add_step(view, made, {folder ? FileView::Step::Kind::folder : FileView::Step::Kind::file, path.string(), {}});
  view.steps.push_back({kind, path.string(), path.string()});
}

}  // namespace

FileView file_view_of(const SandboxedProgram& program) {
  std::error_code error;
  const fs::path folder = fs::canonical(program.folder, error),
                 home = fs::weakly_canonical(io::environment("HOME"), error);
  Resolved wanted;
  for (const std::string& path : program.readable)
    if (fs::path(path).is_absolute()) wanted.add(path);
  wanted.add(program.folder);
  std::erase_if(wanted.paths, [&](const fs::path& path) { return inside(folder, path) || inside(home, path); });
  for (const char* path : kSystem) wanted.add(path);

  FileView view{.root = (folder / "root").string(), .folder = folder.string()};
  view.writable = program.kind == SandboxedProgram::Kind::compiler;
  std::set<fs::path> shown, made;
  for (const fs::path& path : wanted.paths)  // in order: a folder comes before what it holds
    if (std::none_of(shown.begin(), shown.end(), [&](const fs::path& other) { return inside(path, other); }))
      shown.insert(path);
  for (const auto& [link, leads] : wanted.links)
    if (std::none_of(shown.begin(), shown.end(), [&](const fs::path& other) { return inside(link, other); }))
      add_step(view, made, {FileView::Step::Kind::link, link.string(), leads.string()});
  for (const fs::path& path : shown) {
    add_mount(view, made, path, FileView::Step::Kind::mount);
    view.readable.push_back(path.string());
  }
  for (const char* device : kDevices)
    if (fs::exists(device, error)) {
      add_mount(view, made, device, FileView::Step::Kind::device);
      view.devices.emplace_back(device);
    }
  add_step(view, made, {FileView::Step::Kind::folder, folder.string(), {}});
  return view;
}

}  // namespace attend::labs
