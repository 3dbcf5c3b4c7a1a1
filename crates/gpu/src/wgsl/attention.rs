//! Attention of one query per sequence (or of several of one sequence) over paged keys and values.
//!
//! A split is 256 tokens, counted from token 0 of the sequence. A workgroup has one split, one KV
//! head and up to 8 of the query heads that share it, so that keys and values are read once:
//! 1. thread `t` has tokens `t` and `t + 128`: it adds the products with each query over the
//!    dimensions in order;
//! 2. maximum and sum of the exponentials of the 256 scores, in 16 parts per head;
//! 3. a thread has 8 dimensions of the values of every `lanes`-th token; the lanes' sums are added
//!    in their order.
//!
//! With more than one split, sums go to memory and [`merge`](super::merge) adds the splits. Order
//! and number of splits follow from the sequence's own position only.

use super::Code;
use super::output::{Output, add8, entry};
use super::sinks;
use crate::kernel::{AttentionKernel, AttentionOutput, Target};
use crate::kv_format::{KV_BLOCK_TOKENS, KvFormat};
use crate::window::AttentionWindow;

/// Tokens per split.
pub(crate) const SPLIT_TOKENS: u32 = 256;
/// Threads of a workgroup of [`attention`].
const THREADS: u32 = 128;
/// Tokens per thread in the scores.
const OWN_TOKENS: u32 = SPLIT_TOKENS / THREADS;
/// Words of values that a thread loads together.
const VALUE_UNROLL: u32 = 8;
/// Number of workgroups that keep a large GPU busy.
const BUSY_WORKGROUPS: u64 = 256;
/// Workgroup memory in bytes available on every device, minus that of an 8-bit output.
const MEMORY: u32 = 15 << 10;
/// Parts in which the scores of a head are reduced.
const PARTS: u32 = 16;
/// Query heads per workgroup: enough workgroups for a large GPU, then as many as share the reads.
pub(crate) fn choose_heads(a: &AttentionKernel, splits: u64, sequences: u64) -> u32 {
    let group = a.heads / a.kv_heads;
    let busy = |n: u32| splits * sequences * u64::from(a.heads / n) >= BUSY_WORKGROUPS;
    let fits = |n: u32| workgroup_bytes(&AttentionKernel { workgroup_heads: Some(n), ..*a }) <= MEMORY;
    (1..=8).rev().find(|&n| group.is_multiple_of(n) && busy(n) && fits(n)).unwrap_or(1)
}

/// 4-value words of a head's partial result: the sums, then maximum and sum of the exponentials.
pub(crate) fn partial_words(head_dim: u32) -> u32 {
    head_dim / 4 + 1
}

/// Bytes of workgroup memory, without those of the output.
pub(crate) fn workgroup_bytes(a: &AttentionKernel) -> u32 {
    4 * (a.workgroup_heads.unwrap_or(1) * (a.head_dim + SPLIT_TOKENS + 2 * PARTS) + 8 * THREADS)
}

/// `first visible token, tokens` of a sequence.
pub(super) fn range(code: &mut Code, window: Option<AttentionWindow>) {
    code.line("let end = positions[sequence] + 1u;");
    code.line(format!("let begin = {};", begin_of("end", window)));
}

/// First token that a query before token `end` sees.
pub(super) fn begin_of(end: &str, window: Option<AttentionWindow>) -> String {
    window.map_or("0u".to_owned(), |window| window.begin_source(end))
}

struct Emitter<'a> {
    code: &'a mut Code,
    a: &'a AttentionKernel,
    output: Output,
    /// Query heads of a workgroup.
    heads: u32,
    /// 8-value words of a key.
    words: u32,
    /// 8-value words of a value.
    value_words: u32,
    /// Threads that share a word of the values.
    lanes: u32,
}

pub(super) fn attention(code: &mut Code, a: &AttentionKernel, target: Target) {
    let (words, value_words) = (a.head_dim / 8, a.value_dim() / 8);
    let output = Output {
        cols: a.heads * a.value_dim(),
        quantize: a.output == AttentionOutput::Quantized,
        threads: THREADS,
        target,
    };
    let fitting = THREADS / value_words;
    let lanes = 1 << fitting.ilog2();
    let mut e = Emitter { code, a, output, heads: a.workgroup_heads.unwrap_or(1), words, value_words, lanes };
    e.head();
    e.entry();
    e.first_values();
    e.store_queries();
    e.scores();
    e.exponentials();
    e.values();
    for head in 0..e.heads {
        e.reduce(head);
    }
    e.code.line("}");
}

impl Emitter<'_> {
    fn head(&mut self) {
        let (heads, code) = (self.heads, &mut *self.code);
        code.binding(0, "read", "queries", "vec4<f32>");
        code.binding(1, "read", "keys", "vec4<u32>");
        let mut next = 2;
        if self.a.values_from.is_none() {
            let eight = if self.a.format == KvFormat::Q8 { "vec2<u32>" } else { "vec4<u32>" };
            code.binding(next, "read", "values", eight); // of 8 values
            next += 1;
        }
        code.binding(next, "read", "positions", "u32");
        code.binding(next + 1, "read", "table", "u32");
        if self.a.output == AttentionOutput::Partial {
            code.binding(next + 2, "read_write", "partial", "vec4<f32>");
        } else {
            self.output.declare(code, next + 2);
            if self.a.sinks {
                sinks::declare(code, next + 2 + self.output.bindings());
            }
        }
        code.line(format!(
            "var<workgroup> query: array<vec4<f32>, {}>;
            var<workgroup> scores: array<f32, {}>;
            var<workgroup> peaks: array<f32, {parts}>;
            var<workgroup> sums: array<f32, {parts}>;
            var<workgroup> lanes: array<vec4<f32>, {}>;",
            heads * self.words * 2,
            heads * SPLIT_TOKENS,
            2 * THREADS,
            parts = heads * PARTS,
        ));
        match self.a.format {
            KvFormat::F16 => self.f16_reads(),
            KvFormat::Q8 => self.q8_reads(),
        }
    }

    /// Places of keys, and reads of values, in F16.
    fn f16_reads(&mut self) {
        add8(self.code);
        let (kv_heads, words) = (self.a.kv_heads, self.words);
        self.code.line(format!(
            "fn first_key(pages: u32, kv_head: u32, token: u32) -> u32 {{
            let block = table[pages + token / {KV_BLOCK_TOKENS}u] * {kv_heads}u + kv_head;
            return block * {}u + token % {KV_BLOCK_TOKENS}u;
            }}",
            words * KV_BLOCK_TOKENS
        ));
        self.code.line(match self.a.values_from {
            Some(first) => format!(
                "fn value_word(pages: u32, kv_head: u32, token: u32, word: u32) -> vec4<u32> {{
                return keys[first_key(pages, kv_head, token) + (word + {}u) * {KV_BLOCK_TOKENS}u];
                }}",
                first / 8
            ),
            None => format!(
                "fn value_word(pages: u32, kv_head: u32, token: u32, word: u32) -> vec4<u32> {{
                let block = table[pages + token / {KV_BLOCK_TOKENS}u] * {kv_heads}u + kv_head;
                return values[(block * {KV_BLOCK_TOKENS}u + token % {KV_BLOCK_TOKENS}u) * {words}u + word];
                }}"
            ),
        });
    }

    /// The same in Q8. A word of 8 values comes with the scales of its 64 dimensions.
    fn q8_reads(&mut self) {
        let (kv_heads, words, format, dim) = (self.a.kv_heads, self.words, self.a.format, self.a.head_dim);
        let quants = format.quants_words(dim);
        self.code.line(format!(
            "fn add4(sum: f32, k: vec4<f32>, q: vec4<f32>) -> f32 {{
            return fma(k.w, q.w, fma(k.z, q.z, fma(k.y, q.y, fma(k.x, q.x, sum))));
            }}
            fn plane(pages: u32, kv_head: u32, token: u32) -> u32 {{
            let block = table[pages + token / {KV_BLOCK_TOKENS}u] * {kv_heads}u + kv_head;
            return block * {plane}u;
            }}
            fn value_word(pages: u32, kv_head: u32, token: u32, word: u32) -> vec3<u32> {{",
            plane = quants + format.scale_words(dim),
        ));
        self.code.line(match self.a.values_from {
            Some(first) => format!(
                "let first = plane(pages, kv_head, token);
                let at = token % {KV_BLOCK_TOKENS}u;
                let place = word + {}u;
                let two = keys[first + place / 2u * {KV_BLOCK_TOKENS}u + at];
                let scales = keys[first + {quants}u + place / 8u * {quarter}u + at / 4u][at % 4u];
                return vec3<u32>(select(two.xy, two.zw, place % 2u == 1u), scales);
                }}",
                first / 8,
                quarter = KV_BLOCK_TOKENS / 4
            ),
            None => format!(
                "let first = 2u * plane(pages, kv_head, token);
                let at = token % {KV_BLOCK_TOKENS}u;
                let pair = {scales}u + word / 8u * {half_block}u;
                return vec3<u32>(values[first + at * {words}u + word], values[first + pair + at / 2u][at % 2u]);
                }}",
                scales = 2 * quants,
                half_block = KV_BLOCK_TOKENS / 2
            ),
        });
    }

    fn entry(&mut self) {
        let (a, heads) = (self.a, self.heads);
        let subgroup = self.output.target.subgroup.filter(|_| self.output.quantize);
        entry(self.code, THREADS, subgroup, "@builtin(num_workgroups) groups: vec3<u32>,");
        let parts = a.heads / heads;
        self.code.line(format!(
            "let sequence = group.y;
            let first_head = (group.x % {parts}u) * {heads}u;
            let kv_head = first_head / {}u;",
            a.heads / a.kv_heads
        ));
        self.code.line(if a.one_sequence {
            "let pages = 0u;"
        } else {
            "let pages = sequence * (arrayLength(&table) / groups.y);"
        });
        self.load_queries();
        range(self.code, a.window);
        self.code.line(format!(
            "let split = group.x / {parts}u;
            let start = (begin / {SPLIT_TOKENS}u + split) * {SPLIT_TOKENS}u;
            if (start >= end) {{
            return;
            }}
            let low = max(begin, start) - start; // visible tokens of the split
            let high = min(end - start, {SPLIT_TOKENS}u);"
        ));
    }

    /// Issues the loads of the queries before those that depend on positions and tables.
    fn load_queries(&mut self) {
        let (words, last) = (self.words * 2, self.heads * self.words * 2 - 1);
        for i in 0..(last + 1).div_ceil(THREADS) {
            self.code.line(format!(
                "let staged{i} = queries[(sequence * {}u + first_head) * {words}u + min(thread + {}u, {last}u)];",
                self.a.heads,
                i * THREADS
            ));
        }
    }

    fn store_queries(&mut self) {
        let (words, scale) = (self.heads * self.words * 2, f32::from_bits(self.a.scale_bits));
        for i in 0..words.div_ceil(THREADS) {
            let at = i * THREADS;
            self.code.line(format!(
                "if (thread + {at}u < {words}u) {{\nquery[thread + {at}u] = staged{i} * {scale:?};\n}}"
            ));
        }
        self.code.line("workgroupBarrier();");
    }

    fn scores(&mut self) {
        for t in 0..OWN_TOKENS {
            self.code.line(format!(
                "let token{t} = thread + {}u;
                let visible{t} = token{t} >= low && token{t} < high;
                let key_token{t} = start + clamp(token{t}, low, high - 1u);",
                t * THREADS
            ));
            for h in 0..self.heads {
                self.code.line(format!("var score{h}_{t} = 0.0;"));
            }
        }
        match self.a.format {
            KvFormat::F16 => self.f16_products(),
            KvFormat::Q8 => self.q8_products(),
        }
        for (h, t) in self.own_scores() {
            let score = format!("score{h}_{t}");
            if let Some(cap) = self.a.soft_cap_bits.map(f32::from_bits) {
                self.code.line(format!("{score} = {cap:?} * tanh(clamp({score} / {cap:?}, -15.0, 15.0));"));
            }
            let at = h * SPLIT_TOKENS + t * THREADS;
            self.code.line(format!("scores[{at}u + thread] = select(-3e38, {score}, visible{t});"));
        }
    }

    /// Words of keys in a step: few heads leave registers for more loads in flight.
    fn key_unroll(&self, words: u32) -> u32 {
        1 << words.trailing_zeros().min(if self.heads <= 2 { 3 } else { 2 })
    }

    /// Products of queries and keys in F16, a word of 8 values after the other.
    fn f16_products(&mut self) {
        let (words, heads) = (self.words, self.heads);
        for t in 0..OWN_TOKENS {
            self.code.line(format!("let key{t} = first_key(pages, kv_head, key_token{t});"));
        }
        let unroll = self.key_unroll(words);
        let steps = || (0..unroll).flat_map(|u| (0..OWN_TOKENS).map(move |t| (u, t)));
        self.code.line(format!("for (var word = 0u; word < {words}u; word += {unroll}u) {{"));
        for (u, t) in steps() {
            self.code.line(format!("let k{u}_{t} = keys[key{t} + (word + {u}u) * {KV_BLOCK_TOKENS}u];"));
        }
        for u in 0..unroll {
            for h in 0..heads {
                let at = format!("2u * word + {}u", (h * words + u) * 2);
                self.code.line(format!("let q{u}_{h} = query[{at}];\nlet r{u}_{h} = query[{at} + 1u];"));
                for t in 0..OWN_TOKENS {
                    let sum = format!("score{h}_{t}");
                    self.code.line(format!("{sum} = add8({sum}, k{u}_{t}, q{u}_{h}, r{u}_{h});"));
                }
            }
        }
        self.code.line("}");
    }

    /// Products of queries and keys in Q8: sums over 32 dimensions, each times its scale. A word
    /// has 16 values.
    fn q8_products(&mut self) {
        let (words, heads, format) = (self.words / 2, self.heads, self.a.format);
        let unroll = self.key_unroll(words);
        let tokens = || 0..OWN_TOKENS;
        for t in tokens() {
            self.code.line(format!(
                "let plane{t} = plane(pages, kv_head, key_token{t});
                let at{t} = key_token{t} % {KV_BLOCK_TOKENS}u;
                let key{t} = plane{t} + at{t};
                let scales{t} = plane{t} + {}u + at{t} / 4u;",
                format.quants_words(self.a.head_dim)
            ));
        }
        self.code.line(format!("for (var word = 0u; word < {words}u; word += {unroll}u) {{"));
        for (u, t) in (0..unroll).flat_map(|u| tokens().map(move |t| (u, t))) {
            self.code.line(format!("let k{u}_{t} = keys[key{t} + (word + {u}u) * {KV_BLOCK_TOKENS}u];"));
        }
        // Groups of 32 dimensions; two share a word of scales.
        for (g, t) in (0..unroll / 2).flat_map(|g| tokens().map(move |t| (g, t))) {
            let pair =
                format!("keys[scales{t} + (word + {}u) / 4u * {}u][at{t} % 4u]", 2 * g, KV_BLOCK_TOKENS / 4);
            let half = format!("(word + {}u) / 2u % 2u * 16u", 2 * g);
            self.code.line(format!("let d{g}_{t} = unpack2x16float({pair} >> ({half})).x;"));
        }
        for g in 0..unroll / 2 {
            for (h, t) in self.own_scores() {
                self.code.line(format!("var sum{g}_{h}_{t} = 0.0;"));
            }
            for (u, part) in (2 * g..2 * g + 2).flat_map(|u| (0..4).map(move |part| (u, part))) {
                let component = ["x", "y", "z", "w"][part as usize];
                for t in tokens() {
                    let quants = format!("k{u}_{t}.{component}");
                    self.code.line(format!("let x{u}_{part}_{t} = vec4<f32>(unpack4xI8({quants}));"));
                }
                for h in 0..heads {
                    let q = format!("q{u}_{part}_{h}");
                    self.code.line(format!("let {q} = query[4u * word + {}u];", (h * words + u) * 4 + part));
                    for t in tokens() {
                        let sum = format!("sum{g}_{h}_{t}");
                        self.code.line(format!("{sum} = add4({sum}, x{u}_{part}_{t}, {q});"));
                    }
                }
            }
            for (h, t) in self.own_scores() {
                let score = format!("score{h}_{t}");
                self.code.line(format!("{score} = fma(sum{g}_{h}_{t}, d{g}_{t}, {score});"));
            }
        }
        self.code.line("}");
    }

    /// Heads and tokens of a thread.
    fn own_scores(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        (0..self.heads).flat_map(|h| (0..OWN_TOKENS).map(move |t| (h, t)))
    }

    /// Replaces the scores by their exponentials; partial sums go to `sums`.
    fn exponentials(&mut self) {
        let (heads, parts) = (self.heads, self.heads * PARTS);
        let steps = SPLIT_TOKENS / PARTS;
        let at = format!("(thread / {PARTS}u) * {SPLIT_TOKENS}u + thread % {PARTS}u");
        // Written out: drivers do not unroll loops that wgpu bounds.
        let reduce = |code: &mut Code, into: &str, value: &dyn Fn(&str) -> String| {
            code.line(format!(
                "workgroupBarrier();\nif (thread < {parts}u) {{\nlet first_score = {at};\nvar total = scores[first_score];"
            ));
            for i in 1..steps {
                let next = format!("scores[first_score + {}u]", i * PARTS);
                code.line(format!("total = {};", value(&next)));
            }
            code.line(format!("{into}[thread] = total;\n}}"));
        };
        reduce(self.code, "peaks", &|next| format!("max(total, {next})"));
        self.code.line("workgroupBarrier();");
        for h in 0..heads {
            self.code.line(format!("var peak{h} = peaks[{}u];", h * PARTS));
            for i in 1..PARTS {
                self.code.line(format!("peak{h} = max(peak{h}, peaks[{}u]);", h * PARTS + i));
            }
        }
        for (h, t) in self.own_scores() {
            let at = h * SPLIT_TOKENS + t * THREADS;
            // The bound keeps exp within the range that every driver computes.
            self.code.line(format!(
                "scores[{at}u + thread] = select(0.0, exp(max(score{h}_{t} - peak{h}, -80.0)), visible{t});"
            ));
        }
        reduce(self.code, "sums", &|next| format!("total + {next}"));
    }

    /// Loads the first words of the values early, while scores are computed.
    fn first_values(&mut self) {
        let words = self.value_words;
        self.code.line(format!(
            "let word8 = thread % {words}u;\nlet lane = thread / {words}u;\nvar first = lane;"
        ));
        if self.a.format == KvFormat::Q8 {
            let first = self.a.values_from.unwrap_or(0) / 8;
            self.code
                .line(format!("let half = (word8 + {first}u) / 4u % 2u * 16u; // of a word of two scales"));
        }
        for u in 0..self.value_unroll() {
            self.code.line(format!("var v{u} = {};", self.value(u)));
        }
    }

    fn value_unroll(&self) -> u32 {
        (SPLIT_TOKENS / self.lanes).min(VALUE_UNROLL)
    }

    fn value(&self, u: u32) -> String {
        let token = format!("start + clamp(first + {}u, low, high - 1u)", u * self.lanes);
        format!("value_word(pages, kv_head, {token}, word8)")
    }

    fn values(&mut self) {
        let (lanes, heads, unroll) = (self.lanes, self.heads, self.value_unroll());
        for h in 0..heads {
            self.code.line(format!("var a{h} = vec4<f32>();\nvar b{h} = vec4<f32>();"));
        }
        self.code.line(format!("if (lane < {lanes}u) {{\nwhile (first < high) {{"));
        for u in 0..unroll {
            let scale = match self.a.format {
                KvFormat::F16 => {
                    self.code.line(format!(
                        "let c{u} = vec4<f32>(unpack2x16float(v{u}.x), unpack2x16float(v{u}.y));
                        let d{u} = vec4<f32>(unpack2x16float(v{u}.z), unpack2x16float(v{u}.w));"
                    ));
                    String::new()
                }
                KvFormat::Q8 => {
                    self.code.line(format!(
                        "let c{u} = vec4<f32>(unpack4xI8(v{u}.x));
                        let d{u} = vec4<f32>(unpack4xI8(v{u}.y));
                        let s{u} = unpack2x16float(v{u}.z >> half).x;"
                    ));
                    format!(" * s{u}")
                }
            };
            for h in 0..heads {
                self.code.line(format!(
                    "let p{u}_{h} = vec4<f32>(scores[first + {}u]{scale});
                    a{h} = fma(p{u}_{h}, c{u}, a{h});
                    b{h} = fma(p{u}_{h}, d{u}, b{h});",
                    h * SPLIT_TOKENS + u * lanes
                ));
            }
        }
        self.code.line(format!("first += {}u;\nif (first < high) {{", lanes * unroll));
        for u in 0..unroll {
            self.code.line(format!("v{u} = {};", self.value(u)));
        }
        self.code.line("}\n}\n}");
    }

    /// Adds the lanes of a head and stores the result.
    fn reduce(&mut self, h: u32) {
        let (words, partial) = (self.value_words * 2, partial_words(self.a.value_dim()));
        self.code.line(format!(
            "workgroupBarrier();
            lanes[2u * thread] = a{h};
            lanes[2u * thread + 1u] = b{h};
            workgroupBarrier();
            {{
            var value = vec4<f32>();
            if (thread < {words}u) {{"
        ));
        for i in 0..self.lanes {
            self.code.line(format!("value += lanes[thread + {}u];", i * words));
        }
        self.code.line(format!("}}\nvar sum = sums[{}u];", h * PARTS));
        for i in 1..PARTS {
            self.code.line(format!("sum += sums[{}u];", h * PARTS + i));
        }
        if self.a.output == AttentionOutput::Partial {
            self.code.line(format!(
                "let at = ((split * groups.y + sequence) * {}u + first_head + {h}u) * {partial}u;
                if (thread < {words}u) {{
                partial[at + thread] = value;
                }}
                if (thread == 0u) {{
                partial[at + {words}u] = vec4<f32>(peak{h}, sum, 0.0, 0.0);
                }}",
                self.a.heads
            ));
        } else {
            let head = format!("first_head + {h}u");
            sinks::divide(self.code, self.a.sinks, &format!("peak{h}"), "sum", &head);
            self.code.line(format!(
                "let row = sequence;
                let word = select(WORDS, (first_head + {h}u) * {words}u + thread, thread < {words}u);"
            ));
            self.output.store(self.code);
        }
        self.code.line("}");
    }
}
