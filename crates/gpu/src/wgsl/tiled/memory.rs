//! Keys and values of a step on their way to workgroup memory.

use super::{Emitter, Plane};
use crate::kv_format::{KV_BLOCK_TOKENS, KvFormat};

impl Emitter<'_> {
    fn format(&self) -> KvFormat {
        self.t.attention.format
    }

    /// Words of 16 bytes of keys or values per head: 8 values, 16 in Q8.
    fn words(&self) -> u32 {
        self.format().quants_words(self.dim) / KV_BLOCK_TOKENS
    }

    /// Words of keys or values of a step.
    fn all_items(&self) -> u32 {
        self.step * self.words()
    }

    /// Words of keys or values that a thread brings to workgroup memory per step.
    fn items(&self) -> u32 {
        self.all_items().div_ceil(self.threads())
    }

    /// Index of a thread's item; the last one again where there are fewer than threads.
    fn item(&self, n: u32) -> String {
        let (threads, items) = (self.threads(), self.all_items());
        let at = if n == 0 { "thread".to_owned() } else { format!("thread + {}u", n * threads) };
        if (n + 1) * threads > items { format!("min({at}, {}u)", items - 1) } else { at }
    }

    /// Names the items of a thread.
    pub(super) fn declare_items(&mut self) {
        for n in 0..self.items() {
            self.code.line(format!("let item{n} = {};", self.item(n)));
        }
    }

    /// Reads a thread's items of the step at token `at`, and their scales.
    pub(super) fn load(&mut self, plane: Plane, declare: &str, at: &str) {
        for n in 0..self.items() {
            let (name, item) = (format!("{}{n}", plane.letter()), format!("item{n}"));
            self.read(plane, declare, &name, at, &item);
        }
    }

    /// Reads an item of the step at token `at`, and its scale.
    fn read(&mut self, plane: Plane, declare: &str, name: &str, at: &str, item: &str) {
        let value = self.word(plane, at, item);
        self.code.line(format!("{declare}{name} = {value};"));
        if self.format() == KvFormat::Q8 {
            let scale = self.scale(plane, at, item);
            self.code.line(format!("{declare}{name}_scale = {scale};"));
        }
    }

    /// Stores what [`Emitter::load`] read.
    pub(super) fn keep(&mut self, plane: Plane) {
        let (threads, items) = (self.threads(), self.all_items());
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
        let (items, threads) = (self.all_items(), self.threads());
        self.code.line(format!("for (var item = thread; item < {items}u; item += {threads}u) {{"));
        self.read(plane, "let ", "value", "start", "item");
        self.put(plane, "item", "value");
        self.code.line("}");
    }

    /// First word of the keys or values in the block of an item of the step at token `at`.
    fn first_word(&self, at: &str, item: &str) -> String {
        let (block, format) = (self.words() * KV_BLOCK_TOKENS, self.format());
        format!(
            "(table[{at} / {KV_BLOCK_TOKENS}u + {item} / {block}u] * {}u + kv_head)
            * {}u",
            self.t.attention.kv_heads,
            block + format.scale_words(self.dim)
        )
    }

    /// An item of the step at token `at`. Keys and values of a KV block are contiguous: words of
    /// all tokens, and all words of a token.
    fn word(&self, plane: Plane, at: &str, item: &str) -> String {
        let block = self.words() * KV_BLOCK_TOKENS;
        format!("{}[{} + {item} % {block}u]", plane.buffer(), self.first_word(at, item))
    }

    /// Scale of an item in Q8.
    fn scale(&self, plane: Plane, at: &str, item: &str) -> String {
        let quants = self.words() * KV_BLOCK_TOKENS;
        let (token, word) = self.place(plane, item);
        format!(
            "unpack2x16float({buffer}[{first} + {quants}u + {word} / 4u * {row}u
            + {token} % {KV_BLOCK_TOKENS}u / 4u][{token} % 4u] >> ({word} / 2u % 2u * 16u)).x",
            buffer = plane.buffer(),
            first = self.first_word(at, item),
            row = KV_BLOCK_TOKENS / 4
        )
    }

    /// Token in the step, and word of its head, of an item.
    fn place(&self, plane: Plane, item: &str) -> (String, String) {
        let (words, block) = (self.words(), KV_BLOCK_TOKENS * self.words());
        match plane {
            Plane::Keys => (
                format!("({item} / {block}u * {KV_BLOCK_TOKENS}u + {item} % {KV_BLOCK_TOKENS}u)"),
                format!("({item} % {block}u / {KV_BLOCK_TOKENS}u)"),
            ),
            Plane::Values => (format!("({item} / {words}u)"), format!("({item} % {words}u)")),
        }
    }

    /// Stores an item. Values that no query of the tile sees become zeros, since they may be
    /// anything.
    fn put(&mut self, plane: Plane, item: &str, value: &str) {
        let (token, word) = self.place(plane, item);
        let parts: Vec<String> = match self.format() {
            KvFormat::F16 => ["a", "b"].map(|part| format!("{value}.{part}")).into(),
            KvFormat::Q8 => ["x", "y", "z", "w"]
                .map(|part| format!("vec4<f16>(vec4<f32>(unpack4xI8({value}.{part})) * {value}_scale)"))
                .into(),
        };
        self.code.line(format!("let token = {token};\nlet word = {word} * {}u;", parts.len()));
        if plane == Plane::Values {
            self.code.line("let seen = start + token >= low && start + token < until;");
        }
        for (i, part) in parts.iter().enumerate() {
            self.code.line(match plane {
                Plane::Keys => format!("tile[token][word + {i}u] = {part};"),
                Plane::Values => {
                    format!("tile[{}u + token][word + {i}u] = select(vec4<f16>(), {part}, seen);", self.step)
                }
            });
        }
    }
}
