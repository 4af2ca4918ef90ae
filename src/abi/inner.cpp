// The C ABI of what a layer may compute between its projections.
#include <cstring>

#include "abi/abi.hpp"
#include "attend/attend_variants.h"

using namespace attend::abi;

attend_status attend_inner_parameter(attend_inner* inner, const char* name, attend_tensor* parameter) {
  return guard([&] {
    const char* op = "attend_inner_parameter";
    const char* wanted = &require(op, "name", name);
    attend::InnerAttention& object = *require(op, "inner", inner).inner;
    attend_tensor& result = require(op, "parameter", parameter);
    for (const attend::NamedTensor& own : object.parameters()) {
      if (own.name != wanted) continue;
      result = attend::abi::tensor_of(own.value);
      return;
    }
    attend::fail(op, std::string("name is \"") + wanted + "\", which " + object.name() + " does not have");
  });
}

void attend_inner_free(attend_inner* inner) {
  delete inner;
}
