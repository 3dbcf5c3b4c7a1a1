//! Final hidden states and next tokens of domains, from files.

use std::error::Error;
use std::path::Path;

/// Width of the hidden states.
pub(crate) const DIM: usize = 512;

/// Tokens of one split of one domain.
pub(crate) struct Tokens {
    /// Hidden states, `[n, DIM]`.
    pub(crate) hidden: Vec<f32>,
    /// The token that follows each.
    pub(crate) targets: Vec<u32>,
    /// Logits of the model, `[n, vocabulary]`: they do not change.
    pub(crate) logits: Vec<f32>,
}

/// One split of one domain, and a token in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    pub(crate) set: usize,
    pub(crate) index: usize,
}

/// Everything that is read: sets are train, validation and test of each domain in turn.
pub(crate) struct Data {
    pub(crate) domains: Vec<String>,
    pub(crate) sets: Vec<Tokens>,
    /// Head, `[vocabulary, DIM]`.
    pub(crate) head: Vec<f32>,
    pub(crate) vocabulary: usize,
}

pub(crate) const TRAIN: usize = 0;
pub(crate) const VALIDATION: usize = 1;
pub(crate) const TEST: usize = 2;

impl Data {
    /// Reads `head.f32` and, of each domain, `NAME-train.f32`, `NAME-train.u32` and the same of
    /// `test`, of which the first third is for choosing settings (validation).
    pub(crate) fn read(folder: &Path, domains: &[String], limit: usize) -> Result<Self, Box<dyn Error>> {
        let head = floats(&folder.join("head.f32"))?;
        let vocabulary = head.len() / DIM;
        let mut sets = Vec::new();
        for domain in domains {
            let (hidden, targets) = split(folder, domain, "train")?;
            let n = targets.len().min(limit);
            sets.push(Tokens::new(&hidden[..n * DIM], &targets[..n], &head)?);
            let (hidden, targets) = split(folder, domain, "test")?;
            let cut = targets.len() / 3;
            sets.push(Tokens::new(&hidden[..cut * DIM], &targets[..cut], &head)?);
            sets.push(Tokens::new(&hidden[cut * DIM..], &targets[cut..], &head)?);
        }
        Ok(Self { domains: domains.to_vec(), sets, head, vocabulary })
    }

    pub(crate) fn set(domain: usize, split: usize) -> usize {
        3 * domain + split
    }

    pub(crate) fn tokens(&self, set: usize) -> Vec<Token> {
        (0..self.sets[set].targets.len()).map(|index| Token { set, index }).collect()
    }
}

impl Tokens {
    fn new(hidden: &[f32], targets: &[u32], head: &[f32]) -> Result<Self, Box<dyn Error>> {
        let vocabulary = head.len() / DIM;
        if let Some(target) = targets.iter().find(|target| **target as usize >= vocabulary) {
            return Err(format!("token {target} is outside the vocabulary of {vocabulary}").into());
        }
        let mut logits = vec![0.0; targets.len() * vocabulary];
        // Rows of the head stay in the cache for 16 tokens.
        for (states, logits) in hidden.chunks(16 * DIM).zip(logits.chunks_mut(16 * vocabulary)) {
            for (index, row) in head.chunks_exact(DIM).enumerate() {
                for (state, logits) in states.chunks_exact(DIM).zip(logits.chunks_exact_mut(vocabulary)) {
                    logits[index] = dot(row, state);
                }
            }
        }
        Ok(Self { hidden: hidden.to_vec(), targets: targets.to_vec(), logits })
    }

    pub(crate) fn state(&self, index: usize) -> &[f32] {
        &self.hidden[index * DIM..][..DIM]
    }

    pub(crate) fn logits(&self, index: usize, vocabulary: usize) -> &[f32] {
        &self.logits[index * vocabulary..][..vocabulary]
    }
}

fn split(folder: &Path, domain: &str, name: &str) -> Result<(Vec<f32>, Vec<u32>), Box<dyn Error>> {
    let hidden = floats(&folder.join(format!("{domain}-{name}.f32")))?;
    let path = folder.join(format!("{domain}-{name}.u32"));
    let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let targets: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
    match hidden.len() == targets.len() * DIM && targets.len() >= 3 {
        true => Ok((hidden, targets)),
        false => Err(format!(
            "{domain}-{name}: {} values for {} tokens of width {DIM}",
            hidden.len(),
            targets.len()
        )
        .into()),
    }
}

fn floats(path: &Path) -> Result<Vec<f32>, Box<dyn Error>> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}

/// Dot product in lanes, which the compiler vectorizes.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 32];
    for (a, b) in a.as_chunks::<32>().0.iter().zip(b.as_chunks::<32>().0) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum()
}
