// Lab: view, transpose, contiguous: real strides, and when memory is copied.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "attend/attention.hpp"
#include "labs/registry.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

// An array of any rank as frameworks keep it: sizes and strides over memory that it may share.
struct Array {
  std::vector<std::int64_t> shape, strides;
  const float* data = nullptr;
};

std::vector<std::int64_t> packed_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t n = shape.size(); n-- > 1;) strides[n - 1] = strides[n] * shape[n];
  return strides;
}

bool contiguous(const Array& a) {
  return a.strides == packed_strides(a.shape);
}

// The strides that show `a` in another shape without a copy, or none: axes may only be merged where one stride serves
// both.
std::optional<std::vector<std::int64_t>> view_strides(const Array& a, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::size_t to = shape.size();
  for (std::size_t from = a.shape.size(); from > 0;) {
    // A run of axes that lie in memory as one.
    const std::int64_t step = a.strides[from - 1];
    std::int64_t count = a.shape[from - 1];
    std::size_t first = from - 1;
    while (first > 0 && (a.shape[first - 1] == 1 || a.strides[first - 1] == a.strides[first] * a.shape[first])) {
      --first;
      count *= a.shape[first];
    }
    std::int64_t taken = 1;
    while (to > 0 && taken < count) {
      strides[to - 1] = step * taken;
      taken *= shape[to - 1];
      --to;
    }
    if (taken != count) return std::nullopt;
    from = first;
  }
  while (to > 0 && shape[to - 1] == 1) --to;
  if (to != 0) return std::nullopt;
  return strides;
}

Text list_text(const std::vector<std::int64_t>& list) {
  const std::string text = fmt::format("[{}]", fmt::join(list, ", "));
  return {text, text};
}

Results measure(const Arguments& a, const Progress&) {
  Results results;
  const std::int64_t B = 2, L = a["length"], H = a["heads"], D = a["dim"], W = H * D;
  const Tensor memory = random_tensor({B, 1, L, W}, 1);
  const float* data = memory.data<float>();
  Table table{say("One projection's result, [batch {}, length {}, width {}], on its way to heads",
                  "一次投影的结果 [batch {}, length {}, width {}] 变成多头的过程", B, L, W),
              {say("step", "步骤"), say("shape", "形状"), say("strides", "步长"), say("contiguous", "连续"),
               say("copied", "复制")},
              {}};
  const auto row = [&](Text step, const Array& x, bool copied) {
    table.rows.push_back({std::move(step), list_text(x.shape), list_text(x.strides),
                          contiguous(x) ? say("yes", "是") : say("no", "否"),
                          copied ? say("{} bytes", "{} 字节", B * L * W * 4) : say("none", "不复制")});
  };
  Array x{{B, L, W}, packed_strides({B, L, W}), data};
  row(same("x"), x, false);
  const auto split = view_strides(x, {B, L, H, D});
  Array heads{{B, L, H, D}, split.value_or(std::vector<std::int64_t>{}), data};
  row(same("view(B, L, H, D)"), heads, false);
  Array turned{{B, H, L, D}, {heads.strides[0], heads.strides[2], heads.strides[1], heads.strides[3]}, data};
  row(same("transpose(1, 2)"), turned, false);
  const bool merge = view_strides(turned, {B, H, L * D}).has_value();
  // Back: [B, H, L, D] as attention gave it -> [B, L, H * D].
  Array back{{B, L, H, D}, {H * L * D, D, L * D, 1}, nullptr};
  row(say("of the output: transpose(1, 2)", "对输出：transpose(1, 2)"), back, false);
  const bool back_view = view_strides(back, {B, L, W}).has_value();
  row(same("contiguous().view(B, L, W)"), {{B, L, W}, packed_strides({B, L, W}), nullptr}, !back_view);
  results.add(std::move(table));
  results.put("split_is_view", split.has_value() ? 1 : 0);
  results.put("transposed_contiguous", contiguous(turned) ? 1 : 0);
  results.put("merge_is_view", merge ? 1 : 0);
  results.put("back_is_view", back_view ? 1 : 0);
  results.put("heads", H);
  results.put("length", L);

  // The engine reads strides: attention over the transposed view, without a copy, against one over copied heads.
  const Shape logical{B, H, L, D};
  const View strided{DType::f32, data, logical, length_major_strides(logical)};
  Tensor copy(DType::f32, logical);
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t h = 0; h < H; ++h)
      for (std::int64_t i = 0; i < L; ++i)
        std::memcpy(copy.data<float>() + ((b * H + h) * L + i) * D, data + (b * L + i) * W + h * D,
                    static_cast<std::size_t>(D) * sizeof(float));
  results.put("strided_bits",
              same_bits(attention(strided, strided, strided).out, attention(copy, copy, copy).out) ? 1 : 0);
  results.put("strides_agree",
              std::equal(turned.strides.begin(), turned.strides.end(), strided.strides.begin()) ? 1 : 0);

  // repeat_kv: expand is a view with stride 0, reshape of it cannot be one.
  const std::int64_t groups = a["groups"];
  Array expanded{{B, H, groups, L, D}, {H * L * D, L * D, 0, D, 1}, nullptr};
  const bool repeat_view = view_strides(expanded, {B, H * groups, L, D}).has_value();
  results.put("repeat_is_view", repeat_view ? 1 : 0);
  results.put("groups", groups);
  results.add(
      Table{say("repeat_kv with {} groups: expand, then reshape", "repeat_kv，{} 组：先 expand 再 reshape", groups),
            {say("step", "步骤"), say("shape", "形状"), say("strides", "步长"), say("bytes", "字节")},
            {{same("k"), list_text({B, H, L, D}), list_text(packed_strides({B, H, L, D})), same("{}", B * W * L * 4)},
             {same("expand"), list_text(expanded.shape), list_text(expanded.strides), same("{}", B * W * L * 4)},
             {same("reshape"), list_text({B, H * groups, L, D}),
              repeat_view ? same("-") : list_text(packed_strides({B, H * groups, L, D})),
              same("{}", (repeat_view ? 1 : groups) * B * W * L * 4)}}});
  return results;
}

std::vector<Conclusion> judge(const Numbers& n) {
  std::vector<Conclusion> list;
  list.push_back(
      conclude("split_copies_nothing", n.at("split_is_view") != 0,
               say("splitting the width into heads is a view: other numbers in the description, the same memory.",
                   "把宽度拆成多头只是视图：描述里的数字变了，内存没变。"),
               say("splitting the width into heads needed a copy here.", "这里拆多头竟然需要复制。")));
  const bool trivial = n.at("heads") == 1 || n.at("length") == 1;
  list.push_back(
      conclude("transpose_is_not_contiguous", n.at("transposed_contiguous") == 0 && n.at("strides_agree") != 0,
               say("transpose copies nothing either, but its result is not contiguous: the strides change places.",
                   "transpose 也不复制，但结果不再连续：只是步长换了位置。"),
               trivial ? say("with one head or one token transpose leaves memory contiguous.",
                             "只有一个头或一个词元时，transpose 之后仍然连续。")
                       : say("transpose left memory contiguous.", "transpose 之后仍然连续。")));
  list.push_back(
      conclude("way_back_copies", n.at("back_is_view") == 0,
               say("the way back, [B, H, L, D] to [B, L, H·D], cannot be a view: view refuses, contiguous copies. "
                   "Reshape copies "
                   "without saying so.",
                   "回去的路，[B, H, L, D] 到 [B, L, H·D]，不可能是视图：view 会拒绝，contiguous 会复制，reshape "
                   "则是悄悄复制。"),
               say("the way back was a view here: nothing had to be copied.", "这里回去的路是视图：不必复制。")));
  list.push_back(conclude(
      "merging_needs_one_stride", n.at("merge_is_view") == 0,
      say("merging length and dim of the transposed view needs one stride for both, and there is none.",
          "把转置后的 length 与 dim 合并，需要一个同时适用于两者的步长，而它不存在。"),
      say("length and dim of the transposed view could be merged here.", "这里转置后的 length 与 dim 可以合并。")));
  list.push_back(
      conclude("engine_reads_strides", n.at("strided_bits") != 0,
               say("this engine reads the transposed view where it lies, with the same bits as over a contiguous copy.",
                   "本引擎直接读取转置后的视图，结果与先复制成连续内存逐位相同。"),
               say("the strided view and the copy gave different bits.", "带步长的视图与复制后的结果不逐位相同。")));
  list.push_back(conclude(
      "repeat_kv_copies", n.at("repeat_is_view") == 0,
      say("repeat_kv by expand and reshape makes a copy {:.0f} times as large; expand alone (stride 0) would not.",
          "repeat_kv 用 expand 加 reshape，会复制出 {:.0f} 倍大的内存；单是 expand（步长 0）则不会。", n.at("groups")),
      say("with {:.0f} group(s) repeat_kv is a view.", "{:.0f} 组时 repeat_kv 是视图。", n.at("groups"))));
  return list;
}

}  // namespace

Lab shapes_lab() {
  return {
      .name = "shapes",
      .title = say("View, transpose, contiguous", "view、transpose 与 contiguous"),
      .question = say("Which of the reshapings in multi-head attention move memory, and which only change how it is "
                      "read?",
                      "多头注意力里的各种变形，哪些真的搬动了内存，哪些只是换了读法？"),
      .lesson = say("\"repeat_kv is a view.\" \"contiguous() is a formality.\" Both are wrong.",
                    "“repeat_kv 是视图。”“contiguous() 只是走个形式。”两句都不对。"),
      .guess = say("Four steps: view, transpose, transpose back, view. Which of them copies? And repeat_kv?",
                   "四个步骤：view、transpose、transpose 回来、view。哪一步会复制？repeat_kv 呢？"),
      .why = {say(
          "A tensor is a pointer, sizes and strides; element [i, j] lies at i·stride₀ + j·stride₁. View and "
          "transpose only write new sizes and strides. Two axes can be read as one only if stepping off the "
          "end of the inner one lands on the next row of the outer one: outer stride = inner stride × inner "
          "size. After a transpose, or with stride 0, that fails.",
          "张量就是一个指针加上形状和步长；元素 [i, j] 在 i·步长₀ + j·步长₁ 处。view 和 transpose 只是写下新的形状"
          "和步长。两个轴能合并成一个，前提是内层走到头恰好落到外层的下一行：外层步长 = 内层步长 × 内层大小。"
          "转置之后，或步长为 0 时，这就不成立了。")},
      .seconds = 1,
      .minutes = 7,
      .parameters = {{"length", 5, 1, 4096, 5, say("tokens", "词元数")},
                     {"heads", 4, 1, 64, 4, say("heads", "头数")},
                     {"dim", 8, 1, 256, 8, say("head dimension", "头维度")},
                     {"groups", 4, 1, 64, 4, say("query heads that share a KV head", "共享一个 KV 头的查询头数")}},
      .measure = measure,
      .judge = judge};
}

}  // namespace attend::labs
