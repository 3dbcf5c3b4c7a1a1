//! Several residual streams, and gates of which few pass.
//!
//! A workgroup has a row, or a stream of it: thread `t` has the 4-value words `t`, `t + 256`, ...;
//! the threads' sums are added by a binary tree, four sums at a time.

use super::Code;
use super::output::entry;
use crate::stream_keys::{CutGatesKernel, StreamKernel, StreamRows};

/// Threads of a workgroup.
pub(crate) const STREAM_THREADS: u32 = 256;

/// Least mean square by which projections are scaled.
const LEAST_MEAN_SQUARE: f32 = 1e-5;

pub(super) fn emit(code: &mut Code, key: &StreamKernel) {
    match key {
        StreamKernel::Split(k) => split(code, k),
        StreamKernel::Predict(k) => predict(code, k),
        StreamKernel::Correct(k) => correct(code, k),
        StreamKernel::AddToOthers(k) => add(code, k),
        StreamKernel::Merge(k) => merge(code, k),
        StreamKernel::CutGates(k) => cut_gates(code, k),
    }
}

/// Component `i` of a sum of four.
fn component(i: u32) -> &'static str {
    ["x", "y", "z", "w"][i as usize % 4]
}

/// Functions that add products of words, and the sums of all threads.
fn sums(code: &mut Code) {
    code.line(format!(
        "var<workgroup> sums: array<vec4<f32>, {STREAM_THREADS}>;
        fn products(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {{
        return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
        }}
        fn add_threads(thread: u32, value: vec4<f32>) -> vec4<f32> {{
        sums[thread] = value;
        workgroupBarrier();"
    ));
    let mut stride = STREAM_THREADS / 2;
    while stride > 0 {
        code.line(format!(
            "if (thread < {stride}u) {{
            sums[thread] += sums[thread + {stride}u];
            }}
            workgroupBarrier();"
        ));
        stride /= 2;
    }
    code.line("let total = sums[0];\nworkgroupBarrier(); // before the next sums\nreturn total;\n}");
}

/// Opens a loop over the words of a thread.
fn each_word(code: &mut Code) {
    code.line(format!("for (var word = thread; word < WORDS; word += {STREAM_THREADS}u) {{"));
}

fn words(code: &mut Code, dim: u32) {
    code.line(format!("const WORDS: u32 = {}u; // 4-value words per stream", dim / 4));
}

/// Factor that gives a sum of squares `own` of a row the mean square of another, `like`.
fn factor(dim: u32, like: &str, own: &str) -> String {
    format!("sqrt({like} / {dim:?} / max({own} / {dim:?}, {LEAST_MEAN_SQUARE:?}))", dim = dim as f32)
}

fn split(code: &mut Code, k: &StreamRows) {
    words(code, k.dim);
    code.binding(0, "read", "hidden", "vec4<f32>");
    code.binding(1, "read_write", "streams", "vec4<f32>");
    sums(code);
    entry(code, STREAM_THREADS, None, "");
    code.line(format!(
        "let first = group.y * WORDS;
        let at = (group.y * {}u + group.x) * WORDS;
        var squares = vec4<f32>();",
        k.count
    ));
    each_word(code);
    code.line(format!(
        "squares.x = products(squares.x, hidden[first + word], hidden[first + word]);
        squares.y = products(squares.y, streams[at + word], streams[at + word]);
        }}
        let total = add_threads(thread, squares);
        let factor = {};",
        factor(k.dim, "total.x", "total.y")
    ));
    each_word(code);
    code.line(
        "if (group.x == 0u) {
        streams[at + word] = hidden[first + word];
        } else {
        streams[at + word] *= factor;
        }
        }
        }",
    );
}

/// Gates of the streams, `gates0` and `gates1`, by the stream whose words are `value`.
fn gates(code: &mut Code, k: &StreamRows, value: &str) {
    code.line("var square = vec4<f32>();");
    each_word(code);
    code.line(format!(
        "let value = {value};
        square.x = products(square.x, value, value);
        }}
        let scale = inverseSqrt(add_threads(thread, square).x / {:?} + {:?});
        var logits0 = vec4<f32>();
        var logits1 = vec4<f32>();",
        k.dim as f32,
        f32::from_bits(k.eps_bits)
    ));
    each_word(code);
    code.line(format!("let normed = ({value}) * scale * norm[word];"));
    for g in 0..k.count {
        let logit = format!("logits{}.{}", g / 4, component(g));
        code.line(format!("{logit} = products({logit}, normed, router[{g}u * WORDS + word]);"));
    }
    code.line("}");
    let limit = "vec4<f32>(15.0)";
    code.line(format!("let gates0 = tanh(clamp(add_threads(thread, logits0), -{limit}, {limit}));"));
    if k.count > 4 {
        code.line(format!("let gates1 = tanh(clamp(add_threads(thread, logits1), -{limit}, {limit}));"));
    }
}

/// `own[thread]` of the first `n` threads: `start` plus the gates times the thread's coefficients.
fn weighted(code: &mut Code, k: &StreamRows, n: u32, start: f32) {
    code.line(format!("if (thread < {n}u) {{\nlet at = thread * {}u;\nvar share = 0.0;", k.count));
    for g in 0..k.count {
        code.line(format!("share = fma(shares[at + {g}u], gates{}.{}, share);", g / 4, component(g)));
    }
    code.line(format!("own[thread] = share + {start:?};\n}}\nworkgroupBarrier();"));
}

/// Bindings of streams and of the weights of their gates, and memory for `n` shares.
fn gate_bindings(code: &mut Code, k: &StreamRows, n: u32) {
    words(code, k.dim);
    code.binding(0, "read_write", "streams", "vec4<f32>");
    code.binding(1, "read", "norm", "vec4<f32>");
    code.binding(2, "read", "router", "vec4<f32>");
    code.binding(3, "read", "shares", "f32");
    code.binding(4, "read_write", "hidden", "vec4<f32>");
    code.line(format!("var<workgroup> own: array<f32, {}>;", n.next_multiple_of(4)));
}

fn predict(code: &mut Code, k: &StreamRows) {
    let StreamRows { count, active, .. } = *k;
    gate_bindings(code, k, count * count);
    sums(code);
    entry(code, STREAM_THREADS, None, "");
    code.line(format!("let row = group.y;\nlet first = row * {count}u * WORDS;"));
    gates(code, k, &format!("streams[first + {active}u * WORDS + word]"));
    weighted(code, k, count * count, 0.0);
    each_word(code);
    for s in 0..count {
        code.line(format!("let before{s} = streams[first + {s}u * WORDS + word];"));
    }
    for s in 0..count {
        code.line(format!("var after{s} = before{s};"));
        for t in 0..count {
            code.line(format!("after{s} = fma(vec4<f32>(own[{}u]), before{t}, after{s});", s * count + t));
        }
        code.line(format!("streams[first + {s}u * WORDS + word] = after{s};"));
    }
    code.line(format!("hidden[row * WORDS + word] = after{active};\n}}\n}}"));
}

fn correct(code: &mut Code, k: &StreamRows) {
    let StreamRows { count, active, .. } = *k;
    gate_bindings(code, k, count);
    code.binding(5, "read", "delta", "vec4<f32>");
    code.binding(6, "read", "factors", "vec4<f32>");
    sums(code);
    entry(code, STREAM_THREADS, None, "");
    code.line(format!("let row = group.y;\nlet first = row * {count}u * WORDS;"));
    let value = "hidden[row * WORDS + word] + delta[row * WORDS + word]";
    gates(code, k, value);
    weighted(code, k, count, 1.0);
    each_word(code);
    code.line(format!("let difference = {value} - streams[first + {active}u * WORDS + word];"));
    for s in 0..count {
        code.line(format!(
            "let after{s} = fma(vec4<f32>(own[{s}u]), difference, streams[first + {s}u * WORDS + word]);
            streams[first + {s}u * WORDS + word] = after{s};"
        ));
    }
    code.line(format!("hidden[row * WORDS + word] = after{active} * factors[word];\n}}\n}}"));
}

fn add(code: &mut Code, k: &StreamRows) {
    words(code, k.dim);
    code.binding(0, "read_write", "streams", "vec4<f32>");
    code.binding(1, "read", "delta", "vec4<f32>");
    entry(code, STREAM_THREADS, None, "");
    code.line(format!(
        "let index = group.x * {STREAM_THREADS}u + thread;
        if (index < {}u * WORDS) {{
        streams[(group.y * {}u + 1u) * WORDS + index] += delta[group.y * WORDS + index % WORDS];
        }}
        }}",
        k.count - 1,
        k.count
    ));
}

fn merge(code: &mut Code, k: &StreamRows) {
    let StreamRows { count, dim, .. } = *k;
    words(code, dim);
    code.binding(0, "read", "streams", "vec4<f32>");
    code.binding(1, "read", "projected", "vec4<f32>");
    code.binding(2, "read_write", "out", "vec4<f32>");
    sums(code);
    entry(code, STREAM_THREADS, None, "");
    code.line(format!(
        "let row = group.y;
        let first = row * {count}u * WORDS;
        let others = row * {}u * WORDS;
        var squares0 = vec4<f32>();
        var squares1 = vec4<f32>();",
        count - 1
    ));
    each_word(code);
    code.line("let value0 = streams[first + word];");
    for s in 1..count {
        code.line(format!("let value{s} = projected[others + {}u * WORDS + word];", s - 1));
    }
    for s in 0..count {
        let square = format!("squares{}.{}", s / 4, component(s));
        code.line(format!("{square} = products({square}, value{s}, value{s});"));
    }
    code.line("}\nlet total0 = add_threads(thread, squares0);");
    if count > 4 {
        code.line("let total1 = add_threads(thread, squares1);");
    }
    for s in 1..count {
        let own = format!("total{}.{}", s / 4, component(s));
        code.line(format!("let factor{s} = {};", factor(dim, "total0.x", &own)));
    }
    each_word(code);
    code.line("var sum = streams[first + word];");
    for s in 1..count {
        let projected = format!("projected[others + {}u * WORDS + word]", s - 1);
        code.line(format!("sum = fma(vec4<f32>(factor{s}), {projected}, sum);"));
    }
    code.line(format!("out[row * WORDS + word] = sum * {:?};\n}}\n}}", (count as f32).recip()));
}

fn cut_gates(code: &mut Code, k: &CutGatesKernel) {
    let cols = k.cols as f32;
    words(code, k.cols);
    code.binding(0, "read_write", "x", "vec4<f32>");
    sums(code);
    entry(code, STREAM_THREADS, None, "");
    code.line(format!("let first = group.y * {}u;\nvar sum = vec4<f32>();", k.width / 4));
    each_word(code);
    code.line(format!(
        "sum += x[first + word];
        }}
        let four = add_threads(thread, sum);
        let mean = ((four.x + four.y) + (four.z + four.w)) / {cols:?};
        var square = vec4<f32>();"
    ));
    each_word(code);
    code.line(format!(
        "let distance = x[first + word] - mean;
        square.x = products(square.x, distance, distance);
        }}
        let deviation = sqrt(add_threads(thread, square).x / {cols:?});
        let cutoff = fma(deviation, {:?}, mean);",
        f32::from_bits(k.deviations_bits)
    ));
    each_word(code);
    code.line(
        "let gate = x[first + word];
        x[first + word] = select(gate - cutoff, vec4<f32>(), gate < vec4<f32>(cutoff));
        }
        }",
    );
}
