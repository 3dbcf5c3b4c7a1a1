//! Constrained output: every finished output is an element of the language.
//!
//! Random logits stand for a model in most cases: they are harder, since no habit of a trained
//! model keeps them near valid output. `PROPTEST_CASES` raises the number of generations.

mod schemas;

use std::sync::{Arc, OnceLock};

use jsonschema::Validator;
use proptest::test_runner::Config;
use ruvllm::{
    Constraint, ConstraintCompiler, Error, FinishReason, GenerateRequest, Kernels, Sampler, SamplingParams,
    Tokenizer,
};
use ruvllm_testkit::Random;
use serde_json::Value;

use crate::common::{base, complete, tiny};

/// Most tokens of an output.
const STEPS: usize = 600;
/// Addition to the logits of tokens that close texts, arrays and objects: noise alone rarely ends
/// one of them among thousands of tokens.
const CLOSING: f32 = 7.0;

/// The vocabulary of the base model, with random logits.
struct Noise {
    tokenizer: Arc<Tokenizer>,
    compiler: ConstraintCompiler,
    /// Addition to the logit of each token `[vocab_size]`.
    bias: Vec<f32>,
}

fn noise() -> &'static Noise {
    static NOISE: OnceLock<Noise> = OnceLock::new();
    NOISE.get_or_init(|| {
        let gguf = gguf_rs_lite::Gguf::open(ruvllm_testkit::builtin_model()).expect("the model is there");
        let tokenizer = ruvllm::Checkpoint::tokenizer(&gguf).expect("it has a tokenizer");
        let tokenizer = Arc::new(tokenizer);
        let ids = tokenizer.vocab_size();
        let closes = |id: usize| {
            let bytes = tokenizer.token_bytes(id as u32).unwrap_or_default();
            bytes.iter().any(|byte| b"\"]}".contains(byte)) || tokenizer.is_end_of_generation(id as u32)
        };
        let bias = (0..ids).map(|id| if closes(id) { CLOSING } else { 0.0 }).collect();
        let compiler = ConstraintCompiler::new(Arc::clone(&tokenizer), ids).expect("the vocabulary fits");
        Noise { tokenizer, compiler, bias }
    })
}

impl Noise {
    /// An output at temperature 1; `None` if it is not finished after [`STEPS`] tokens.
    fn generate(&self, constraint: &Constraint, seed: u64) -> Option<String> {
        let mut state = self.compiler.start(constraint).expect("the constraint compiles");
        let params = SamplingParams::greedy().with_temperature(1.0).with_seed(seed);
        let kernels = Kernels::detect().expect("the CPU has kernels");
        let mut sampler = Sampler::new(kernels, &params, self.bias.len()).expect("valid parameters");
        let mut random = Random::new(seed);
        let (mut tokens, mut masked) = (Vec::new(), Vec::new());
        let mut logits = self.bias.clone();
        for position in 0..STEPS {
            let mask = state.mask().expect("the step is within limits");
            for id in mask.ids() {
                logits[id as usize] =
                    self.bias[id as usize] + 4.0 * (random.next_u64() >> 40) as f32 / (1 << 24) as f32;
            }
            mask.apply(&logits, &mut masked);
            let token = sampler.sample(&masked, position).expect("a token is allowed");
            assert!(mask.allows(token));
            state.accept(token).expect("the token is accepted");
            if !self.tokenizer.is_end_of_generation(token) {
                tokens.push(token);
            }
            if state.is_ended() {
                return Some(self.tokenizer.decode(&tokens, false).expect("the ids are known"));
            }
        }
        None
    }
}

/// Schemas with their constraints and validators, which check formats too.
fn validated() -> &'static [(Value, Constraint, Validator)] {
    static ALL: OnceLock<Vec<(Value, Constraint, Validator)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let with_tools = |schema: Value| {
            let constraint =
                Constraint::json_schema(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
            let options = jsonschema::draft202012::options().should_validate_formats(true);
            let validator = options.build(&schema).expect("the schema is valid");
            (schema, constraint, validator)
        };
        schemas::all().into_iter().map(with_tools).collect()
    })
}

fn check(schema: &Value, validator: &Validator, text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}\n{schema}"));
    if let Err(error) = validator.validate(&value) {
        panic!("{error} at {}: {text}\n{schema}", error.instance_path());
    }
}

#[test]
fn outputs_of_random_logits_validate() {
    assert!(validated().len() >= 200, "{} schemas", validated().len());
    let cases = Config::default().cases as usize;
    let mut unfinished = 0;
    for (case, (schema, constraint, validator)) in validated().iter().cycle().take(cases).enumerate() {
        match noise().generate(constraint, case as u64) {
            Some(text) => check(schema, validator, &text),
            None => unfinished += 1,
        }
    }
    println!("{cases} outputs of {} schemas, {unfinished} unfinished", validated().len());
    assert!(unfinished <= cases / 20, "{unfinished} of {cases} outputs are not finished");
}

#[test]
fn outputs_of_the_base_model_validate() {
    let cases = Config::default().cases as usize / 32;
    let request = GenerateRequest::new("An example of the JSON data:\n").with_max_tokens(300);
    let mut finished = 0;
    // Another order than above, so that few cases are not all of one kind.
    for case in 0..cases {
        let (schema, constraint, validator) = &validated()[case * 37 % validated().len()];
        let sampling = SamplingParams::greedy().with_temperature(1.0).with_seed(case as u64);
        let request = request.clone().with_sampling(sampling).with_constraint(constraint.clone());
        let completion = complete(base(), &request);
        if completion.finish_reason == FinishReason::Stop {
            check(schema, validator, &completion.text);
            finished += 1;
        }
    }
    println!("{finished} of {cases} outputs finished");
    assert!(finished * 4 >= cases * 3, "{finished} of {cases} outputs finished");
}

#[test]
fn requests_end_with_their_language() {
    let engine = tiny();
    let choices = ["alpha", "beta", "alphabet"];
    for seed in 0..8 {
        let request = GenerateRequest::new("x")
            .with_sampling(SamplingParams::default().with_temperature(1.5))
            .with_seed(seed)
            .with_max_tokens(64)
            .with_constraint(Constraint::choices(choices).unwrap());
        let completion = complete(engine, &request);
        assert_eq!(completion.finish_reason, FinishReason::Stop);
        assert!(choices.contains(&completion.text.as_str()), "{:?}", completion.text);
        assert_eq!(complete(engine, &request).tokens, completion.tokens);
    }
    let regex = GenerateRequest::new("x").with_constraint(Constraint::regex("[0-9]{3}-[a-f]{2}").unwrap());
    let text = complete(engine, &regex).text;
    assert!(text.len() == 6 && text.as_bytes()[3] == b'-', "{text}");
    let json = GenerateRequest::new("x").with_max_tokens(40).with_constraint(Constraint::json());
    assert!(complete(engine, &json).text.starts_with('{'));
}

#[test]
fn constraints_that_do_not_compile_are_errors_before_anything_is_computed() {
    let request = GenerateRequest::new("x").with_constraint(Constraint::regex("a(b").unwrap());
    match tiny().generate(&request) {
        Err(error @ Error::Constraint(_)) => {
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains("cannot compile the regex"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    // The engine serves others as before.
    assert_eq!(complete(tiny(), &GenerateRequest::new("x").with_max_tokens(2)).tokens.len(), 2);
}

#[test]
fn forced_tokens_take_no_step_of_their_own() {
    let engine = crate::common::load(ruvllm_testkit::builtin_model(), &ruvllm::EngineOptions::default());
    let text = "The only text that this constraint allows, from its first word to its last one.";
    let constraint = Constraint::choices([text]).expect("choices");
    let request = crate::common::greedy("Once upon a time", 64).with_constraint(constraint);
    let completion = complete(&engine, &request);
    assert_eq!((completion.text.as_str(), completion.finish_reason), (text, FinishReason::Stop));
    assert!(completion.tokens.len() > 10, "{completion:?}");
    let steps = engine.step_statistics().steps;
    assert!(steps <= 3, "{steps} steps for {} tokens", completion.tokens.len());
}
