//! Attention of many queries of one sequence (prefill) over paged keys and values, in tiles.
//!
//! An entry is one query head of one row. A workgroup has one KV head and a tile of entries; a team
//! of lanes has 4 of them. The workgroup walks the tokens in steps counted from token 0 of the
//! sequence, from the first visible one of the tile to the last one:
//! 1. a lane has 4 tokens of the step: it adds the products with its team's queries over the
//!    dimensions in order;
//! 2. the running maximum of each entry over the lanes; sums so far are scaled to it;
//! 3. a lane has 8 dimensions of the values and adds the tokens in order.
//!
//! Tokens that an entry does not see add exact zeros and leave its maximum, so that the bits of a
//! row do not depend on the other rows of its tile. Lanes, and with them steps and tiles, follow
//! from the head dimension only.

use super::Code;
use super::output::{Output, add8, entry};
use crate::kernel::{AttentionKernel, AttentionOutput, KV_BLOCK_TOKENS, Target};

/// Threads of a workgroup.
const THREADS: u32 = 128;
/// Entries of a team.
const ENTRIES: u32 = 4;
/// Tokens of a lane in a step.
const OWN_TOKENS: u32 = 4;
/// Words of values that a lane loads together; a divisor of the tokens of a block.
const VALUE_UNROLL: u32 = 4;
/// Components of a vector over the entries of a team.
const COMPONENTS: [&str; ENTRIES as usize] = ["x", "y", "z", "w"];

/// Lanes of a team.
fn lanes(head_dim: u32) -> u32 {
    (head_dim / 8).next_power_of_two().clamp(8, 32)
}

/// Workgroups for `rows` rows: KV heads, tiles.
pub(crate) fn prefill_attention_grid(a: &AttentionKernel, rows: u64) -> (u32, u64) {
    let tile = THREADS / lanes(a.head_dim) * ENTRIES;
    (a.kv_heads, (rows * u64::from(a.heads / a.kv_heads)).div_ceil(tile.into()))
}

struct Emitter<'a> {
    code: &'a mut Code,
    a: &'a AttentionKernel,
    output: Output,
    /// Query heads that share a KV head.
    group: u32,
    /// 8-value words of a head.
    words: u32,
    /// Lanes of a team.
    lanes: u32,
    /// Words of a head that a lane has.
    own_words: u32,
    /// Tokens of a step.
    step: u32,
}

pub(super) fn prefill_attention(code: &mut Code, a: &AttentionKernel, target: Target) {
    let (words, lanes) = (a.head_dim / 8, lanes(a.head_dim));
    let output = Output {
        cols: a.heads * a.head_dim,
        quantize: a.output == AttentionOutput::Quantized,
        threads: THREADS,
        target,
    };
    let (group, own_words) = (a.heads / a.kv_heads, words.div_ceil(lanes));
    let mut e = Emitter { code, a, output, group, words, lanes, own_words, step: OWN_TOKENS * lanes };
    e.head();
    e.entry();
    e.range();
    e.code.line(format!(
        "for (var start = low / {step}u * {step}u; start < high; start += {step}u) {{",
        step = e.step
    ));
    e.scores();
    e.exponentials();
    e.values();
    e.code.line("}");
    e.sums();
    for i in 0..ENTRIES {
        e.store(i);
    }
    e.code.line("}");
}

impl Emitter<'_> {
    fn head(&mut self) {
        let code = &mut *self.code;
        code.binding(0, "read", "queries", "vec4<f32>");
        code.binding(1, "read", "keys", "vec4<u32>");
        code.binding(2, "read", "values", "vec4<u32>");
        code.binding(3, "read", "positions", "u32");
        code.binding(4, "read", "table", "u32");
        self.output.declare(code, 5);
        code.line(format!(
            "var<workgroup> weights: array<vec4<f32>, {}>; // [team, token of the step]
            var<workgroup> shared_lanes: array<vec4<f32>, {THREADS}>;",
            OWN_TOKENS * THREADS,
        ));
        add8(code);
        code.line(format!(
            "fn first_key(kv_head: u32, token: u32) -> u32 {{
            let block = table[token / {KV_BLOCK_TOKENS}u] * {}u + kv_head;
            return block * {}u + token % {KV_BLOCK_TOKENS}u;
            }}",
            self.a.kv_heads,
            self.words * KV_BLOCK_TOKENS
        ));
        let begin = match self.a.window {
            Some(window) => format!("max(end, {window}u) - {window}u"),
            None => "0u".to_owned(),
        };
        code.line(format!("fn first_visible(end: u32) -> u32 {{\nreturn {begin};\n}}"));
    }

    /// Row, head and visible tokens of each entry; entries behind the last one repeat it.
    fn entry(&mut self) {
        let subgroup = self.output.target.subgroup.filter(|_| self.output.quantize);
        entry(self.code, THREADS, subgroup, "");
        let (lanes, group, row_words) = (self.lanes, self.group, self.output.cols / 4);
        self.code.line(format!(
            "let kv_head = group.x;
            let entries = arrayLength(&queries) / {row_words}u * {group}u;
            let team = thread / {lanes}u;
            let lane = thread % {lanes}u;
            let tile = group.y * {}u;
            let first_entry = tile + team * {ENTRIES}u;",
            THREADS / lanes * ENTRIES
        ));
        for i in 0..ENTRIES {
            self.code.line(format!(
                "let entry{i} = min(first_entry + {i}u, entries - 1u);
                let row{i} = entry{i} / {group}u;
                let head{i} = kv_head * {group}u + entry{i} % {group}u;
                let query{i} = row{i} * {row_words}u + head{i} * {}u;
                let end{i} = positions[row{i}] + 1u;",
                self.words * 2
            ));
        }
        let all = |name: &str| (0..ENTRIES).map(|i| format!("{name}{i}")).collect::<Vec<_>>().join(", ");
        let begins = (0..ENTRIES).map(|i| format!("first_visible(end{i})")).collect::<Vec<_>>().join(", ");
        self.code.line(format!(
            "let ends = vec4<u32>({});
            let begins = vec4<u32>({begins});
            var peak = vec4<f32>(-3e38);
            var sum = vec4<f32>();",
            all("end")
        ));
        for w in 0..self.own_words {
            let last = self.words - 1;
            self.code.line(format!("let word{w} = min(lane + {}u, {last}u);", w * lanes));
            for i in 0..ENTRIES {
                self.code.line(format!("var a{w}_{i} = vec4<f32>();\nvar b{w}_{i} = vec4<f32>();"));
            }
        }
    }

    /// Tokens that any row of the tile sees: `low` to `high - 1`.
    fn range(&mut self) {
        let group = self.group;
        self.code.line(format!(
            "var low = 0xffffffffu;
            var high = 0u;
            let last_row = (min(tile + {}u, entries) - 1u) / {group}u;
            for (var row = tile / {group}u; row <= last_row; row++) {{
            let end = positions[row] + 1u;
            low = min(low, first_visible(end));
            high = max(high, end);
            }}",
            THREADS / self.lanes * ENTRIES
        ));
    }

    fn scores(&mut self) {
        for t in 0..OWN_TOKENS {
            self.code.line(format!(
                "let token{t} = start + lane + {}u;
                let visible{t} = (vec4<u32>(token{t}) >= begins) & (vec4<u32>(token{t}) < ends);
                let key{t} = first_key(kv_head, clamp(token{t}, low, high - 1u));",
                t * self.lanes
            ));
            for i in 0..ENTRIES {
                self.code.line(format!("var score{i}_{t} = 0.0;"));
            }
        }
        let (words, unroll) = (self.words, if self.words.is_multiple_of(2) { 2 } else { 1 });
        self.code.line(format!("for (var word = 0u; word < {words}u; word += {unroll}u) {{"));
        for (u, t) in (0..unroll).flat_map(|u| (0..OWN_TOKENS).map(move |t| (u, t))) {
            self.code.line(format!("let k{u}_{t} = keys[key{t} + (word + {u}u) * {KV_BLOCK_TOKENS}u];"));
        }
        for (u, i) in (0..unroll).flat_map(|u| (0..ENTRIES).map(move |i| (u, i))) {
            let at = format!("query{i} + 2u * word + {}u", 2 * u);
            self.code.line(format!("let q{u}_{i} = queries[{at}];\nlet r{u}_{i} = queries[{at} + 1u];"));
            for t in 0..OWN_TOKENS {
                let sum = format!("score{i}_{t}");
                self.code.line(format!("{sum} = add8({sum}, k{u}_{t}, q{u}_{i}, r{u}_{i});"));
            }
        }
        self.code.line("}");
        let scale = f32::from_bits(self.a.scale_bits);
        for t in 0..OWN_TOKENS {
            let parts = (0..ENTRIES).map(|i| format!("score{i}_{t}")).collect::<Vec<_>>().join(", ");
            self.code.line(format!("var scores{t} = vec4<f32>({parts}) * {scale:?};"));
            if let Some(cap) = self.a.soft_cap_bits.map(f32::from_bits) {
                let bounded = format!("clamp(scores{t} / {cap:?}, vec4<f32>(-15.0), vec4<f32>(15.0))");
                self.code.line(format!("scores{t} = {cap:?} * tanh({bounded});"));
            }
            self.code.line(format!("scores{t} = select(vec4<f32>(-3e38), scores{t}, visible{t});"));
        }
    }

    /// Running maximum, exponentials to `weights`, running sum of the lane's own tokens.
    fn exponentials(&mut self) {
        let (lanes, step) = (self.lanes, self.step);
        self.code.line(format!(
            "shared_lanes[thread] = max(max(scores0, scores1), max(scores2, scores3));
            workgroupBarrier();
            let first_lane = team * {lanes}u;
            var top = peak;"
        ));
        // Written out: drivers do not unroll loops that wgpu bounds.
        for lane in 0..lanes {
            self.code.line(format!("top = max(top, shared_lanes[first_lane + {lane}u]);"));
        }
        // The bound keeps exp within the range that every driver computes. The factor of an
        // unchanged maximum is exactly 1.
        self.code.line(
            "let keep = select(exp(max(peak - top, vec4<f32>(-80.0))), vec4<f32>(1.0), peak == top);
            peak = top;",
        );
        for t in 0..OWN_TOKENS {
            self.code.line(format!(
                "let p{t} = select(vec4<f32>(), exp(max(scores{t} - top, vec4<f32>(-80.0))), visible{t});
                weights[team * {step}u + {}u + lane] = p{t};",
                t * lanes
            ));
        }
        self.code.line("sum = fma(sum, keep, p0 + p1 + p2 + p3);");
        for w in 0..self.own_words {
            for (i, part) in COMPONENTS.iter().enumerate() {
                self.code.line(format!("a{w}_{i} *= keep.{part};\nb{w}_{i} *= keep.{part};"));
            }
        }
        self.code.line("workgroupBarrier();");
    }

    /// Adds the values of a step, block by block.
    fn values(&mut self) {
        let (step, words) = (self.step, self.words);
        self.code.line(format!(
            "var at = max(start, low / {KV_BLOCK_TOKENS}u * {KV_BLOCK_TOKENS}u) - start;
            while (at < {step}u && start + at < high) {{
            let first = start + at;
            let block = (table[first / {KV_BLOCK_TOKENS}u] * {}u + kv_head) * {}u;
            let first_seen = max(first, low) - first;
            let last_seen = min(high - first, {KV_BLOCK_TOKENS}u) - 1u;
            for (var token = 0u; token < {KV_BLOCK_TOKENS}u; token += {VALUE_UNROLL}u) {{",
            self.a.kv_heads,
            KV_BLOCK_TOKENS * words
        ));
        for u in 0..VALUE_UNROLL {
            self.code.line(format!(
                "let value{u} = block + clamp(token + {u}u, first_seen, last_seen) * {words}u;"
            ));
            for w in 0..self.own_words {
                self.code.line(format!("let v{u}_{w} = values[value{u} + word{w}];"));
            }
        }
        for u in 0..VALUE_UNROLL {
            self.code.line(format!("let weight{u} = weights[team * {step}u + at + token + {u}u];"));
            for w in 0..self.own_words {
                let v = format!("v{u}_{w}");
                self.code.line(format!(
                    "let c{u}_{w} = vec4<f32>(unpack2x16float({v}.x), unpack2x16float({v}.y));
                    let d{u}_{w} = vec4<f32>(unpack2x16float({v}.z), unpack2x16float({v}.w));"
                ));
                for (i, part) in COMPONENTS.iter().enumerate() {
                    self.code.line(format!(
                        "a{w}_{i} = fma(vec4<f32>(weight{u}.{part}), c{u}_{w}, a{w}_{i});
                        b{w}_{i} = fma(vec4<f32>(weight{u}.{part}), d{u}_{w}, b{w}_{i});"
                    ));
                }
            }
        }
        self.code.line(format!("}}\nat += {KV_BLOCK_TOKENS}u;\n}}"));
    }

    /// Sums of the exponentials over the lanes in their order.
    fn sums(&mut self) {
        let lanes = self.lanes;
        self.code.line(format!(
            "shared_lanes[thread] = sum;
            workgroupBarrier();
            var total = shared_lanes[team * {lanes}u];"
        ));
        for lane in 1..lanes {
            self.code.line(format!("total += shared_lanes[team * {lanes}u + {lane}u];"));
        }
    }

    /// Stores entry `i` of each team, from workgroup memory: a store takes neighbouring words from
    /// neighbouring threads.
    fn store(&mut self, i: u32) {
        let (lanes, words) = (self.lanes, self.words);
        let team_words = 2 * self.own_words * lanes;
        self.code.line("workgroupBarrier();");
        for w in 0..self.own_words {
            self.code.line(format!(
                "if (lane + {}u < {words}u) {{
                weights[team * {team_words}u + 2u * word{w}] = a{w}_{i};
                weights[team * {team_words}u + 2u * word{w} + 1u] = b{w}_{i};
                }}",
                w * lanes
            ));
        }
        self.code.line("workgroupBarrier();");
        for part in 0..2 * self.own_words {
            // The sign of a zero could depend on zeros added for tokens out of sight.
            self.code.line(format!(
                "{{
                let own = lane + {}u;
                let quotient = weights[team * {team_words}u + own] / total.{};
                let value = select(quotient, vec4<f32>(), quotient == vec4<f32>());
                let row = row{i};
                let stored = own < {words}u && first_entry + {i}u < entries;
                let word = select(WORDS, head{i} * {words}u + own, stored);",
                part * lanes,
                COMPONENTS[i as usize],
                words = 2 * words
            ));
            self.output.store(self.code);
            self.code.line("}");
        }
    }
}
