//! Compilation of constraints for one vocabulary, and the cache of the results.

use std::fmt;
use std::sync::Arc;
use std::thread;

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use parking_lot::Mutex;
use ruvllm_text::tokenizer::Tokenizer;
use sha2::{Digest, Sha256};
use toktrie::{InferenceCapabilities, TokEnv};

use super::cache::{Cache, Key};
use super::error::{ConstraintError, readable};
use super::source::{Constraint, Language, Source};
use super::state::ConstraintState;
use super::vocabulary::Vocabulary;

/// Budget of the cache of compiled constraints in bytes, as estimated.
const CACHE_BYTES: usize = 64 << 20;
/// Stack of the thread that compiles: the compiler recurses through the references of rules.
const COMPILE_STACK_BYTES: usize = 256 << 20;

/// Limits of the grammar engine. Fuel bounds work, not time; the rates are its authors'.
fn limits() -> ParserLimits {
    ParserLimits {
        // Alternatives that are open at one position.
        max_items_in_row: 2000,
        // Nodes of regular expressions at compilation, about 50 per microsecond.
        initial_lexer_fuel: 1_000_000,
        // The same for one mask, about 14 per microsecond.
        step_lexer_fuel: 200_000,
        // Parser items for one mask, about 20 per microsecond.
        step_max_items: 50_000,
        // States of one sequence, 1 to 2 kB each.
        max_lexer_states: 50_000,
        // Symbols in all rules.
        max_grammar_size: 250_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Compiles constraints for one vocabulary and keeps the results.
///
/// An engine has one, made at its first request with a constraint. It can also be used alone, with
/// a [`ConstraintState`] beside a [`Sampler`](crate::Sampler).
///
/// # Examples
/// ```no_run
/// use std::sync::Arc;
///
/// use ruvllm::{Constraint, ConstraintCompiler, Tokenizer};
///
/// let tokenizer = Arc::new(Tokenizer::from_file("tokenizer.json".as_ref())?);
/// let ids = tokenizer.vocab_size();
/// let compiler = ConstraintCompiler::new(tokenizer, ids)?;
/// let mut state = compiler.start(&Constraint::choices(["yes", "no"])?)?;
/// let allowed: Vec<u32> = state.mask()?.ids().collect();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ConstraintCompiler {
    factory: ParserFactory,
    cache: Mutex<Cache<Compiled>>,
}

/// A compiled constraint before its first token.
struct Compiled {
    matcher: Matcher,
}

/// The number of ids; the vocabulary would be too long.
impl fmt::Debug for ConstraintCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("ConstraintCompiler").field("ids", &ids).finish_non_exhaustive()
    }
}

impl ConstraintCompiler {
    /// A compiler for the first `ids` tokens of a tokenizer, those with a logit.
    ///
    /// # Errors
    /// [`ConstraintError::Vocabulary`] if the vocabulary is empty or larger than the trie.
    pub fn new(tokenizer: Arc<Tokenizer>, ids: usize) -> Result<Self, ConstraintError> {
        let failed = |reason: String| ConstraintError::Vocabulary { reason };
        let ids = ids.min(tokenizer.vocab_size());
        if ids == 0 {
            return Err(failed("it has no tokens".to_owned()));
        }
        let environment: TokEnv = Arc::new(Vocabulary::new(tokenizer, ids)?);
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
            .map_err(|error| failed(error.to_string()))?;
        *factory.limits_mut() = limits();
        factory.quiet();
        Ok(Self { factory, cache: Mutex::new(Cache::new(CACHE_BYTES)) })
    }

    /// State of a new sequence under a constraint, which is compiled unless it is in the cache.
    ///
    /// States share nothing that grows with their use, so that what one sequence may generate does
    /// not depend on the others.
    ///
    /// # Errors
    /// [`ConstraintError::Compile`] if the grammar engine refuses the constraint.
    pub fn start(&self, constraint: &Constraint) -> Result<ConstraintState, ConstraintError> {
        let source = constraint.source();
        let key = key(source);
        let cached = self.cache.lock().get(&key);
        let compiled = match cached {
            Some(compiled) => compiled,
            None => {
                let (compiled, bytes) = self.compile(source)?;
                let compiled = Arc::new(compiled);
                self.cache.lock().insert(key, Arc::clone(&compiled), bytes);
                compiled
            }
        };
        Ok(ConstraintState::new(compiled.matcher.deep_clone()))
    }

    /// Compiles a source and estimates the bytes of the result.
    fn compile(&self, source: &Source) -> Result<(Compiled, usize), ConstraintError> {
        let failed = |reason: String| ConstraintError::Compile {
            source_kind: source.language.name(),
            reason: readable(&reason),
        };
        let grammar = match source.language {
            Language::Schema => {
                let schema = serde_json::from_str(&source.text).map_err(|error| failed(error.to_string()))?;
                GrammarWithLexer::from_json_schema(schema)
            }
            _ => GrammarWithLexer::from_lark(source.text.clone()),
        };
        let grammar = TopLevelGrammar::from_grammar(grammar);
        thread::scope(|scope| {
            let worker = thread::Builder::new()
                .name("ruvllm-grammar".to_owned())
                .stack_size(COMPILE_STACK_BYTES)
                .spawn_scoped(scope, || self.factory.create_parser(grammar))
                .map_err(|error| failed(format!("cannot start its thread: {error}")))?;
            let parser = worker
                .join()
                .unwrap_or_else(|_| Err(std::io::Error::other("the compiler panicked").into()))
                .map_err(|error| failed(format!("{error:#}")))?;
            // Expressions and states of the lexer, and symbols in proportion to the text.
            let bytes = parser.parser.lexer_stats().num_bytes + 16 * source.text.len() + 4096;
            Ok((Compiled { matcher: Matcher::new(Ok(parser)) }, bytes))
        })
    }

    /// Number of compiled constraints in the cache.
    #[cfg(test)]
    pub(super) fn cached(&self) -> usize {
        self.cache.lock().len()
    }
}

/// SHA-256 of the language and the text.
fn key(source: &Source) -> Key {
    Sha256::new()
        .chain_update(source.language.name())
        .chain_update([0])
        .chain_update(&source.text)
        .finalize()
        .into()
}
