// Labs, quiz and exercises for the explorer's pages: the same labs that `attend lab` runs, over HTTP.
#pragma once

#include <memory>
#include <string>

#include "apps/server/router.hpp"

namespace attend::server {

struct LabsWork;

// One thread of its own runs labs and grades exercises, one after the other; a run whose page has gone is stopped.
class LabsService {
 public:
  // Exercises are programs: they run only for who knows `key`, which is told at the terminal alone. "": for nobody.
  explicit LabsService(std::string key = "");
  ~LabsService();
  LabsService(const LabsService&) = delete;
  LabsService& operator=(const LabsService&) = delete;

  // Under /labs/v1: GET labs, quiz; POST labs/NAME, quiz, check. It must outlive the router's last request.
  void add_routes(Router& router);

 private:
  std::unique_ptr<LabsWork> work_;
};

std::string new_key();  // "k7fq-2mxw-p9ra": nobody guesses it

}  // namespace attend::server
