//! Known pre-tokenizer types: the patterns that split the text, and defaults of the type.
//!
//! The patterns are those of the models' own tokenizer files. Their look-aheads are expressed as
//! [`After`], so that a linear-time engine can run the rest.

/// Treatment of the end of a match, in place of a look-ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// The match is one piece.
    Keep,
    /// The last character of a run of white space goes to the next piece if text follows
    /// (`\s+(?!\S)|\s+`, written `\s+`).
    LeaveLast,
    /// As `LeaveLast`, for patterns with an earlier alternative for line ends: a match that ends in
    /// one is not from `\s+`.
    LeaveLastNoNewline,
    /// As `LeaveLastNoNewline`, and the rest of a run is split into pieces of 512, 256, ... 8, 4, 2
    /// and 1 characters (`\s{512}(?!\S)|...|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`, written `\s+`).
    LeaveLastInPowers,
    /// A number is split into groups of three, counted from its end (`\d{1,3}(?=(?:\d{3})*(?!\d))`,
    /// written `\d+`; or, for numbers that no letter follows, `\d{1,3}(?=(?:\d{3})*\b)`, written
    /// `\d+\b`).
    GroupsOfThree,
}

/// One split of the text; matches and the gaps between them go to the next one.
pub(super) type Cut = (&'static str, After);

/// Rules of a pre-tokenizer type.
#[derive(Debug)]
pub(super) struct Rules {
    /// Values of `tokenizer.ggml.pre`.
    pub(super) names: &'static [&'static str],
    pub(super) cuts: &'static [Cut],
    /// True if a piece that is a token as a whole takes precedence over merges.
    pub(super) ignore_merges: bool,
    /// True if texts begin with a BOS token by default.
    pub(super) add_bos: bool,
}

const fn rules(names: &'static [&'static str], cuts: &'static [Cut]) -> Rules {
    Rules { names, cuts, ignore_merges: false, add_bos: false }
}

/// GPT-2: contractions, words, numbers, other characters, white space.
const GPT2: Cut = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", After::LeaveLast);

macro_rules! after_contractions {
    ($rest:literal) => {
        concat!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|", $rest)
    };
}

/// Llama 3: numbers in groups of up to three digits, line ends with what precedes them.
const LLAMA3: Cut = (
    after_contractions!(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"),
    After::LeaveLastNoNewline,
);

/// Qwen 2: as Llama 3 with single digits.
const QWEN2: Cut = (
    after_contractions!(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"),
    After::LeaveLastNoNewline,
);

/// Jais 2: as Llama 3, with white space in powers of two.
const JAIS2: Cut = (LLAMA3.0, After::LeaveLastInPowers);

/// Ufakzeka: as Qwen 2 without English contractions.
const UFAKZEKA: Cut =
    (r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+", After::LeaveLastNoNewline);

/// EXAONE `MoE`: words of several parts with single spaces between them.
const EXAONE_MOE: Cut = (
    after_contractions!(
        r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+"
    ),
    After::LeaveLastNoNewline,
);

/// Qwen 3.5: marks belong to words.
const QWEN35: Cut = (
    after_contractions!(
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
    ),
    After::LeaveLastNoNewline,
);

/// Words by case (GPT-4o, Tekken): `$tail` follows a word, `$digits` is a number.
macro_rules! by_case {
    ($upper:literal, $lower:literal, $tail:literal, $digits:literal, $ends:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            $upper,
            "*",
            $lower,
            "+",
            $tail,
            r"|[^\r\n\p{L}\p{N}]?",
            $upper,
            "+",
            $lower,
            "*",
            $tail,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+",
            $ends,
            r"|\s*[\r\n]+|\s+"
        )
    };
}

const GPT4O: Cut = (
    by_case!(
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r"[\r\n/]*"
    ),
    After::LeaveLastNoNewline,
);

const TEKKEN: Cut = (
    by_case!(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", "", r"\p{N}", r"[\r\n/]*"),
    After::LeaveLastNoNewline,
);

/// Kimi K2: runs of Han characters, then as GPT-4o without them.
const KIMI_K2: Cut = (
    concat!(
        r"\p{Han}+|",
        by_case!(
            r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r"[\r\n]*"
        )
    ),
    After::LeaveLastNoNewline,
);

/// `DeepSeek` V3, last of its three splits.
const DEEPSEEK3_WORDS: Cut = (
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##,
    After::LeaveLastNoNewline,
);

/// Spark 2.5, third of its four splits.
const SPARK_WORDS: Cut = (
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+"##,
    After::LeaveLast,
);

/// Chinese characters and kana.
const HAN_AND_KANA: Cut = (r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+", After::Keep);

/// `AFMoE`: Asian scripts that are written without spaces.
const ASIAN: Cut = (
    concat!(
        r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}",
        r"\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}",
        r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
    ),
    After::Keep,
);

/// Youtu: Korean, East Asian punctuation, Bopomofo, and Chinese with kana, separately.
const YOUTU_SCRIPTS: Cut = (
    concat!(
        r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|",
        r"[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|",
        r"[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
    ),
    After::Keep,
);

/// Youtu, second of its two splits: as GPT-4o with single digits.
const YOUTU_WORDS: Cut = (
    by_case!(
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}",
        r"[\r\n/]*"
    ),
    After::LeaveLastNoNewline,
);

const CJK: Cut = (r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+", After::Keep);

const LINE_END: Cut = (r"[\r\n]", After::Keep);

const DIGIT: Cut = (r"\p{N}", After::Keep);

/// Bloom and the Finnish GPT-3: everything between white space and sentence punctuation.
const BLOOM: Cut = (r" ?[^(\s|.,!?…。，、।۔،)]+", After::Keep);

/// Placeholder for the cased letters of `DeepSeek` LLM, see [`CASED`].
pub(super) const CASED_MARK: &str = "@cased@";

/// Cased letters that the `DeepSeek` LLM tokenizer lists one by one, as first and last of each
/// range: those of an old Unicode version, without mathematical letters.
#[rustfmt::skip]
pub(super) const CASED: &[(u32, u32)] = &[
    (0x41, 0x5A), (0x61, 0x7A), (0xB5, 0xB5), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x1BA), (0x1BC, 0x1BF),
    (0x1C4, 0x293), (0x295, 0x2AF), (0x370, 0x373), (0x376, 0x376), (0x377, 0x377), (0x37B, 0x37D),
    (0x37F, 0x37F), (0x386, 0x386), (0x388, 0x38A), (0x38C, 0x38C), (0x38E, 0x3A1), (0x3A3, 0x3F5),
    (0x3F7, 0x481), (0x48A, 0x52F), (0x531, 0x556), (0x10A0, 0x10C5), (0x13A0, 0x13F5), (0x13F8, 0x13FD),
    (0x1C90, 0x1CBA), (0x1CBD, 0x1CBF), (0x1D00, 0x1D2B), (0x1D6B, 0x1D77), (0x1D79, 0x1D9A),
    (0x1E00, 0x1F15), (0x1F18, 0x1F1D), (0x1F20, 0x1F45), (0x1F48, 0x1F4D), (0x1F50, 0x1F57),
    (0x1F59, 0x1F59), (0x1F5B, 0x1F5B), (0x1F5D, 0x1F5D), (0x1F5F, 0x1F7D), (0x1F80, 0x1FB4),
    (0x1FB6, 0x1FBC), (0x1FBE, 0x1FBE), (0x1FC2, 0x1FC4), (0x1FC6, 0x1FCC), (0x1FD0, 0x1FD3),
    (0x1FD6, 0x1FDB), (0x1FE0, 0x1FEC), (0x1FF2, 0x1FF4), (0x1FF6, 0x1FFC), (0x2102, 0x2102),
    (0x2107, 0x2107), (0x210A, 0x2113), (0x2115, 0x2115), (0x2119, 0x211D), (0x2124, 0x2124),
    (0x2126, 0x2126), (0x2128, 0x2128), (0x212A, 0x212D), (0x212F, 0x2134), (0x2139, 0x2139),
    (0x213C, 0x213F), (0x2145, 0x2149), (0x214E, 0x214E), (0x2183, 0x2183), (0x2184, 0x2184),
    (0x2C00, 0x2C7B), (0x2C7E, 0x2CE4), (0x2CEB, 0x2CEE), (0x2CF2, 0x2CF2), (0x2CF3, 0x2CF3),
    (0xA640, 0xA66D), (0xA680, 0xA69B), (0xA722, 0xA76F), (0xA771, 0xA787), (0xA78B, 0xA78E),
    (0xAB70, 0xABBF), (0xFB00, 0xFB06), (0xFB13, 0xFB17), (0xFF21, 0xFF3A), (0xFF41, 0xFF5A),
    (0x10400, 0x1044F), (0x104B0, 0x104D3), (0x104D8, 0x104FB), (0x10C80, 0x10CB2), (0x10CC0, 0x10CF2),
    (0x118A0, 0x118DF), (0x1E900, 0x1E943),
];

/// Types of vocabularies over characters, which have no rules of their own: texts are split at line
/// ends.
pub(super) const OVER_CHARACTERS: &[&str] = &["gemma4", "granite-embed-multi-311m", "sarvam-moe"];

/// All known types of byte-level vocabularies.
pub(super) const KNOWN: &[Rules] = &[
    rules(
        &["default"],
        &[
            (r"[\p{P}\$\+<=>\^~\|]+", After::Keep),
            GPT2,
            (r"\p{N}+", After::Keep),
            (r"[0-9][0-9][0-9]", After::Keep),
        ],
    ),
    rules(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
        ],
        &[GPT2],
    ),
    Rules {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        cuts: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    rules(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    Rules { names: &["glm4", "glm5"], cuts: &[LLAMA3], ignore_merges: true, add_bos: false },
    rules(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN2],
    ),
    rules(&["qwen35"], &[QWEN35]),
    rules(&["laguna"], &[(r"[^\n]+|[\n]+", After::Keep), QWEN2]),
    rules(&["ufakzeka"], &[UFAKZEKA]),
    rules(&["exaone-moe"], &[EXAONE_MOE]),
    rules(&["jais-2"], &[JAIS2]),
    rules(
        &["deepseek-llm"],
        &[
            LINE_END,
            (concat!(r"\s?[", "@cased@", "]+"), After::Keep),
            (
                r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
                After::Keep,
            ),
            (r"\s+$", After::Keep),
            CJK,
            (r"\p{N}+", After::Keep),
        ],
    ),
    rules(
        &["deepseek-coder"],
        &[LINE_END, (r"\s?\p{L}+", After::Keep), (r"\s?\p{P}+", After::Keep), CJK, DIGIT],
    ),
    rules(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[(r"\p{N}{1,3}", After::Keep), HAN_AND_KANA, DEEPSEEK3_WORDS],
    ),
    rules(&["spark2_5"], &[(r"\p{N}{1,3}", After::Keep), HAN_AND_KANA, SPARK_WORDS, DIGIT]),
    rules(&["afmoe"], &[(r"\p{N}+", After::GroupsOfThree), ASIAN, DEEPSEEK3_WORDS]),
    rules(&["superbpe"], &[(r"\p{N}+", After::Keep), (r"\d+", After::GroupsOfThree)]),
    rules(&["tiny_aya", "cohere2moe"], &[(r"\d+\b", After::GroupsOfThree), GPT4O]),
    Rules { names: &["youtu"], cuts: &[YOUTU_SCRIPTS, YOUTU_WORDS], ignore_merges: true, add_bos: false },
    rules(&["falcon"], &[(r"[\p{P}\$\+<=>\^~\|`]+", After::Keep), GPT2, (r"[0-9][0-9][0-9]", After::Keep)]),
    rules(
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[DIGIT, GPT2],
    ),
    rules(&["bloom", "gpt3-finnish", "poro-chat"], &[BLOOM]),
    rules(&["viking"], &[BLOOM, DIGIT]),
    Rules { names: &["tekken"], cuts: &[TEKKEN], ignore_merges: true, add_bos: true },
    rules(&["gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"], &[GPT4O]),
    Rules { names: &["granite-embed-multi-97m"], cuts: &[GPT4O], ignore_merges: true, add_bos: false },
    rules(&["kimi-k2"], &[KIMI_K2]),
    rules(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+",
            After::LeaveLastNoNewline,
        )],
    ),
    rules(
        &["seed-coder"],
        &[(
            after_contractions!(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+"),
            After::LeaveLastNoNewline,
        )],
    ),
    Rules {
        names: &["minicpm5"],
        cuts: &[
            (r"\p{N}{1,3}", After::Keep),
            (
                after_contractions!(
                    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
                ),
                After::LeaveLastNoNewline,
            ),
        ],
        ignore_merges: true,
        add_bos: false,
    },
    Rules {
        names: &["chameleon"],
        cuts: &[
            (r"<sentinel:[0-9]+>", After::Keep),
            (r"(?:IMGIMG)(?:A|B|C|D|E|F|G|H|I){1,4}Z", After::Keep),
            (r"[\t\n]|    |  ", After::Keep),
            DIGIT,
            (r"[\p{P}!-/:-@\[-`{-~]", After::Keep),
            GPT2,
        ],
        ignore_merges: false,
        add_bos: true,
    },
];
