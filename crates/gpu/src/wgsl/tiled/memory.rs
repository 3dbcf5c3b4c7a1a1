//! Keys and values of a step on their way to workgroup memory.

use super::{Emitter, Plane};
use crate::kernel::KV_BLOCK_TOKENS;

impl Emitter<'_> {
    /// Words of 8 keys or values that a thread brings to workgroup memory per step.
    fn items(&self) -> u32 {
        (self.step * self.dim / 8).div_ceil(self.threads())
    }

    /// Index of a thread's item; the last one again where there are fewer than threads.
    fn item(&self, n: u32) -> String {
        let (threads, items) = (self.threads(), self.step * self.dim / 8);
        let at = if n == 0 { "thread".to_owned() } else { format!("thread + {}u", n * threads) };
        if (n + 1) * threads > items { format!("min({at}, {}u)", items - 1) } else { at }
    }

    /// Names the items of a thread.
    pub(super) fn declare_items(&mut self) {
        for n in 0..self.items() {
            self.code.line(format!("let item{n} = {};", self.item(n)));
        }
    }

    /// Reads a thread's items of the step at token `at`.
    pub(super) fn load(&mut self, plane: Plane, declare: &str, at: &str) {
        for n in 0..self.items() {
            let (name, value) = (plane.letter(), self.word(plane, at, &format!("item{n}")));
            self.code.line(format!("{declare}{name}{n} = {value};"));
        }
    }

    /// Stores what [`Emitter::load`] read.
    pub(super) fn keep(&mut self, plane: Plane) {
        let (threads, items) = (self.threads(), self.step * self.dim / 8);
        for n in 0..self.items() {
            self.code.line(if (n + 1) * threads > items {
                format!("if (thread < {}u) {{", items - n * threads)
            } else {
                "{".to_owned()
            });
            self.put(plane, &format!("item{n}"), &format!("{}{n}", plane.letter()));
            self.code.line("}");
        }
    }

    /// Brings a step to workgroup memory where products are written out: short code.
    pub(super) fn copy(&mut self, plane: Plane) {
        let (items, threads) = (self.step * self.dim / 8, self.threads());
        self.code.line(format!("for (var item = thread; item < {items}u; item += {threads}u) {{"));
        let value = self.word(plane, "start", "item");
        self.code.line(format!("let value = {value};"));
        self.put(plane, "item", "value");
        self.code.line("}");
    }

    /// An item of the step at token `at`. Keys and values of a KV block are contiguous:
    /// `[head_dim / 8, 32, 8]` and `[32, head_dim / 8, 8]`.
    fn word(&self, plane: Plane, at: &str, item: &str) -> String {
        let block = KV_BLOCK_TOKENS * self.dim / 8;
        let buffer = if plane == Plane::Keys { "keys" } else { "values" };
        format!(
            "{buffer}[(table[{at} / {KV_BLOCK_TOKENS}u + {item} / {block}u] * {}u + kv_head)
            * {block}u + {item} % {block}u]",
            self.t.attention.kv_heads
        )
    }

    /// Stores an item. Values that no query of the tile sees become zeros, since they may be
    /// anything.
    fn put(&mut self, plane: Plane, item: &str, value: &str) {
        let (words, block, step) = (self.dim / 8, KV_BLOCK_TOKENS * self.dim / 8, self.step);
        self.code.line(match plane {
            Plane::Keys => format!(
                "let token = {item} / {block}u * {KV_BLOCK_TOKENS}u + {item} % {KV_BLOCK_TOKENS}u;
                let word = {item} % {block}u / {KV_BLOCK_TOKENS}u * 2u;
                tile[token][word] = {value}.a;
                tile[token][word + 1u] = {value}.b;"
            ),
            Plane::Values => format!(
                "let token = {item} / {words}u;
                let word = {item} % {words}u * 2u;
                let seen = start + token >= low && start + token < until;
                tile[{step}u + token][word] = select(vec4<f16>(), {value}.a, seen);
                tile[{step}u + token][word + 1u] = select(vec4<f16>(), {value}.b, seen);"
            ),
        });
    }
}
