//! `--loss reward`: GRPO on answers that the engine samples and a command rates.

mod command;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ruvllm::{Engine, FinishReason, GenerateRequest, Prompt, SamplingParams};
use ruvllm_adapters::Adapter;
use ruvllm_training::{Answer, Backprop, GroupRelative, Lora, RewardConfig, Rollout, Sequence};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use self::command::RewardCommand;
use super::report::Measured;
use super::{Examples, Run, TrainArgs, examples, new_lora, none, train};
use crate::args::{above_zero, positive};
use crate::commands::sona::data::{Encoder, RewardPrompt};
use crate::error::{Error, Result};

/// Default KL weight, as in the paper of GRPO.
const BETA: f64 = 0.04;
/// Requests that wait in the engine at a time, about.
const WAITING: usize = 256;

/// Flags of --loss reward.
#[derive(Debug, Args)]
pub(super) struct RewardArgs {
    /// Program that rates answers of --loss reward, and arguments, separated by white space
    #[arg(long, value_name = "COMMAND")]
    pub(super) reward: Option<String>,

    /// Answers sampled for each prompt by --loss reward, 2 to 128
    #[arg(long, value_name = "N", default_value = "8", value_parser = group)]
    group: usize,

    /// Maximum number of tokens of a sampled answer
    #[arg(long, value_name = "N", default_value = "64", value_parser = positive)]
    max_tokens: usize,

    /// Time limit of a reward in seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", requires = "reward", value_parser = above_zero)]
    reward_timeout: f32,
}

/// Parses the size of a group.
fn group(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| (2..=128).contains(n));
    n.ok_or_else(|| "expected a whole number from 2 to 128".to_owned())
}

/// GRPO; mean reward of held-out prompts.
pub(super) fn run(
    args: &TrainArgs,
    encoder: &Encoder,
    engine: &Engine,
    backprop: &mut Backprop<'_>,
) -> Result<Run> {
    let RewardArgs { reward, group, max_tokens, reward_timeout } = &args.rewards;
    let Some(command) = reward else {
        let reason = "reward needs a command that rates answers; name one with --reward".to_owned();
        return Err(Error::Conflict { flag: "--loss", reason });
    };
    let limit = engine.context_length().saturating_sub(*max_tokens);
    let Examples { data, levels, test, counts } = examples(args, |path| encoder.prompts(path, limit), none)?;
    let timeout = Duration::from_secs_f32(reward_timeout.min(1e6));
    let program = RewardCommand::start(command, timeout).map_err(failed)?;
    let settings = format!("{command:?} {max_tokens}");
    let mut rollout = Sampled { engine, program, data, held_out: test, max_tokens: *max_tokens, settings };
    let config = RewardConfig { group: *group, beta: args.beta.unwrap_or(BETA), seed: args.seed };
    // New factors change nothing: they are the model alone.
    let before = GroupRelative::new(&mut rollout, config)?.measure(&new_lora(args, backprop)?)?;
    let objective = Box::new(GroupRelative::new(&mut rollout, config)?);
    let (lora, trained) = train(args, backprop, objective, &levels)?;
    let mut measured = Measured::default();
    if let Some(before) = before {
        let after = GroupRelative::new(&mut rollout, config)?.measure(&lora)?;
        measured.add("mean_reward", before, after.unwrap_or(before));
    }
    Ok((trained, counts, measured))
}

/// Answers of the engine with the factors of the step, rated by a command.
struct Sampled<'e> {
    engine: &'e Engine,
    program: RewardCommand,
    data: Vec<RewardPrompt>,
    held_out: Vec<RewardPrompt>,
    max_tokens: usize,
    settings: String,
}

impl Sampled<'_> {
    /// Request for answers to a prompt, from the whole distribution: the gradient is that of the
    /// policy which the answers are sampled from.
    fn request(&self, prompt: &RewardPrompt, adapter: &Arc<Adapter>, seed: u64) -> GenerateRequest {
        GenerateRequest::new(Prompt::Tokens(prompt.tokens.clone()))
            .with_max_tokens(self.max_tokens)
            .with_sampling(SamplingParams::greedy().with_temperature(1.0))
            .with_seed(seed)
            .with_cache_prefix(false)
            .with_adapter(Arc::clone(adapter))
    }

    /// Answers to prompts as sequences and as lines for the command.
    fn answers(
        &self,
        adapter: &Arc<Adapter>,
        prompts: &[(&RewardPrompt, u64)],
        count: usize,
    ) -> ruvllm::Result<Vec<(Sequence, String)>> {
        let mut answers = Vec::with_capacity(prompts.len() * count);
        for prompts in prompts.chunks((WAITING / count).max(1)) {
            let mut groups = Vec::with_capacity(prompts.len());
            for &(prompt, seed) in prompts {
                let request = self.request(prompt, adapter, seed);
                groups.push((prompt, self.engine.submit_many(request, count)?));
            }
            for (prompt, handles) in groups {
                for handle in handles {
                    let completion = handle.wait()?;
                    let mut tokens = completion.tokens;
                    if completion.finish_reason == FinishReason::Stop {
                        // The end of an answer is sampled, too.
                        tokens.extend(self.engine.tokenizer().eos());
                    }
                    let sequence = Sequence::with_prompt(&prompt.tokens, &tokens);
                    answers.push((sequence, prompt.answered(&completion.text)));
                }
            }
        }
        Ok(answers)
    }
}

impl RewardPrompt {
    /// The line of an answer: the fields of the data, with the answer. An `answer` of the data
    /// becomes `reference`.
    fn answered(&self, text: &str) -> String {
        let mut line = self.line.clone();
        if let Some(reference) = line.insert("answer".to_owned(), text.into()) {
            line.entry("reference").or_insert(reference);
        }
        Value::Object(line).to_string()
    }
}

impl Rollout for Sampled<'_> {
    fn n_prompts(&self) -> usize {
        self.data.len()
    }

    fn n_held_out(&self) -> usize {
        self.held_out.len()
    }

    fn sample(
        &mut self,
        lora: &Lora,
        prompts: &[usize],
        is_held_out: bool,
        count: usize,
        seed: u64,
    ) -> ruvllm_training::Result<Vec<Answer>> {
        let adapter = Arc::new(lora.to_loaded()?);
        let list = if is_held_out { &self.held_out } else { &self.data };
        // Choices of a prompt have the seeds that follow: prompts need distant ones.
        let seed_of = |number: usize| seed.wrapping_add((number as u64).wrapping_mul(0xd134_2543_de82_ef95));
        let prompts: Vec<_> =
            prompts.iter().enumerate().map(|(number, &at)| (&list[at], seed_of(number))).collect();
        let answers = self.answers(&adapter, &prompts, count).map_err(failed)?;
        let (sequences, lines): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        let rewards = self.program.rewards(&lines).map_err(failed)?;
        let answers = sequences.into_iter().zip(rewards);
        Ok(answers.map(|(sequence, reward)| Answer { sequence, reward }).collect())
    }

    fn settings(&self) -> String {
        self.settings.clone()
    }

    fn data_digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for list in [&self.data, &self.held_out] {
            digest.update((list.len() as u64).to_le_bytes());
            for prompt in list {
                let line = Value::Object(prompt.line.clone()).to_string();
                digest.update((line.len() as u64).to_le_bytes());
                digest.update(line);
            }
        }
        digest.finalize().into()
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> ruvllm_training::Error {
    ruvllm_training::Error::Other(Box::new(error))
}

#[cfg(test)]
mod tests {
    use ruvllm::crates::adapters::FactorFormat;
    use ruvllm::{AdapterSource, EngineOptions};
    use ruvllm_adapters::export::FactorType;
    use ruvllm_training::LoraConfig;

    use super::*;

    #[test]
    fn factors_in_memory_are_those_of_their_file() {
        let folder = tempfile::tempdir().expect("a folder");
        for (number, family) in ["llama", "phi3"].into_iter().enumerate() {
            let model = ruvllm_testkit::model_data(format!("tiny/{family}/model-F32.gguf"));
            let options = EngineOptions::default().with_adapter_format(FactorFormat::F32);
            let engine = Engine::open_with(model.as_path(), &options).expect("a model");
            let config = LoraConfig { rank: 2, seed: 3, ..LoraConfig::default() };
            let mut lora = Lora::new(engine.adapter_base(), &config).expect("factors");
            let mut state = 1.0_f32;
            lora.values_mut().fill_with(|| {
                state = (state * 1.7 + 0.3) % 1.0;
                state - 0.5
            });
            let path = folder.path().join(number.to_string());
            lora.write(&path, FactorType::F32, false).expect("a file");
            let of_file = engine.load_adapter(&[AdapterSource { path, scale: 1.0 }]).expect("an adapter");
            let loaded = lora.to_loaded().expect("an adapter");
            assert_eq!(loaded.layout(), of_file.layout(), "{family}");
            assert_eq!(loaded.digests(), of_file.digests(), "{family}");
        }
    }

    #[test]
    fn the_line_of_an_answer_keeps_the_fields_of_the_data() {
        let prompt = |line: &str| RewardPrompt {
            tokens: vec![1],
            line: serde_json::from_str(line).expect("an object"),
        };
        let answered =
            |line: &str| -> Value { serde_json::from_str(&prompt(line).answered("4\n")).expect("an object") };
        assert_eq!(
            answered(r#"{"prompt": "2+2", "answer": "four", "unit": 7}"#),
            serde_json::json!({"prompt": "2+2", "answer": "4\n", "reference": "four", "unit": 7})
        );
        assert_eq!(answered(r#"{"prompt": "x"}"#), serde_json::json!({"prompt": "x", "answer": "4\n"}));
    }
}
