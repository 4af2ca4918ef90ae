// Tests of the C ABI of Reformer's attention: the bits of the C++ calls, and bad arguments.
#include "attend/attend_variants.h"
#include "attend/reformer.hpp"

#include "unit/c_abi_tensors.hpp"

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::is_refused;
using test::same_bits;
using test::seen;

TEST(CAbiReformer, ForwardAndBackward) {
  Tensor q = drawn(1, {2, 4, 90, 8}), v = drawn(3, {2, 2, 90, 6}), dout = drawn(6, {2, 4, 90, 6});
  Tensor out(DType::f32, dout.shape()), lse(DType::f32, {2, 4, 90, 1}), expected(DType::f32, dout.shape());
  Tensor expected_lse(DType::f32, lse.shape());
  const attend_tensor cq = seen(q), cv = seen(v), cdout = seen(dout), cout = seen(out), clse = seen(lse);
  ASSERT_TRUE(is_ok(attend_reformer(&cq, &cv, &cout, nullptr, nullptr)));
  reformer(q, v, expected);
  EXPECT_TRUE(same_bits(out, expected));

  attend_reformer_options c;
  attend_reformer_options_init(&c);
  ASSERT_TRUE(is_ok(attend_reformer(&cq, &cv, &cout, &c, nullptr)));
  EXPECT_TRUE(same_bits(out, expected));
  const std::int64_t buckets[] = {4, 2};
  c.rounds = 3, c.chunk = 16, c.buckets = buckets, c.bucket_count = 2, c.causal = 1, c.seed = 77;
  c.has_scale = 1, c.scale = 0.4;
  ReformerOptions cpp;
  cpp.rounds = 3, cpp.chunk = 16, cpp.buckets = {4, 2}, cpp.causal = true, cpp.seed = 77, cpp.scale = 0.4;
  ASSERT_TRUE(is_ok(attend_reformer(&cq, &cv, &cout, &c, &clse)));
  reformer(q, v, expected, cpp, expected_lse.view());
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_TRUE(same_bits(lse, expected_lse));

  Tensor dq(DType::f32, q.shape()), dv(DType::f32, v.shape()), wq(DType::f32, q.shape()), wv(DType::f32, v.shape());
  const attend_tensor cdq = seen(dq), cdv = seen(dv);
  ASSERT_TRUE(is_ok(attend_reformer_backward(&cdout, &cq, &cv, &cout, &clse, &cdq, &cdv, &c)));
  reformer_backward(dout, q, v, out, lse, {wq, wv}, cpp);
  EXPECT_TRUE(same_bits(dq, wq) && same_bits(dv, wv));

  std::vector<std::int32_t> hashes(3 * 2 * 4 * 90);
  ASSERT_TRUE(is_ok(attend_reformer_hashes(&cq, &c, hashes.data(), 3 * 2 * 4 * 90)));
  EXPECT_EQ(hashes, reformer_hashes(q, cpp));
  double recall = 0;
  ASSERT_TRUE(is_ok(attend_reformer_recall(&cq, &c, 10, &recall)));
  EXPECT_EQ(recall, reformer_recall(q, cpp, 10));

  EXPECT_TRUE(is_refused(attend_reformer_hashes(&cq, &c, hashes.data(), 5), "number of hashes is 5"));
  EXPECT_TRUE(is_refused(attend_reformer_hashes(&cq, &c, nullptr, 3 * 2 * 4 * 90), "hashes is null"));
  EXPECT_TRUE(is_refused(attend_reformer_recall(&cq, &c, 10, nullptr), "recall is null"));
  EXPECT_TRUE(is_refused(attend_reformer(nullptr, &cv, &cout, &c, nullptr), "q is null"));
  EXPECT_TRUE(is_refused(attend_reformer_backward(&cdout, &cq, &cv, &cout, &clse, nullptr, &cdv, &c), "dq is null"));
  c.buckets = nullptr;
  EXPECT_TRUE(is_refused(attend_reformer(&cq, &cv, &cout, &c, nullptr), "buckets is null"));
  c.bucket_count = 0, c.rounds = -1;
  EXPECT_TRUE(is_refused(attend_reformer(&cq, &cv, &cout, &c, nullptr), "rounds is -1"));
  c.struct_size = 3;
  EXPECT_TRUE(is_refused(attend_reformer(&cq, &cv, &cout, &c, nullptr), "attend_reformer_options_init"));
  attend_reformer_options_init(nullptr);
}

}  // namespace
}  // namespace attend
