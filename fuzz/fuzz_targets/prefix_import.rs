//! Sends an engine the entries of another with changes and in any pieces: blocks that it keeps are
//! unchanged.
//!
//! The first byte is the length of the pieces; each four bytes after it are a change: its kind, its
//! place, and a value.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ruvllm::{Engine, EngineOptions, GenerateRequest, KvPolicy, PrefixOffer, Prompt, Tenant};

const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/models/tests/data/tiny/llama/model-F16.gguf");
const BLOCKS: usize = 3;
const MOST_CHANGES: usize = 16;

static PROMPT: LazyLock<Vec<u32>> = LazyLock::new(|| (3..3 + 32 * BLOCKS as u32).collect());

/// Offer and entries of the prompt's blocks.
static SENT: LazyLock<(PrefixOffer, Vec<Vec<u8>>)> = LazyLock::new(|| {
    let engine = engine();
    let request = GenerateRequest::new(Prompt::Tokens(PROMPT.clone())).with_max_tokens(1);
    engine.generate(request).expect("a token");
    export(&engine)
});

fn engine() -> Engine {
    let policy: KvPolicy = "q8".parse().expect("a policy");
    let options = EngineOptions::default().with_threads(1).with_kv(policy).with_kv_budget(4 << 20);
    Engine::open_with(MODEL, &options.with_prefix_transfers(true)).expect("the model loads")
}

fn export(engine: &Engine) -> (PrefixOffer, Vec<Vec<u8>>) {
    let export = engine.export_prefix(&Tenant::root(), &PROMPT, 0).expect("transfers are on");
    (export.offer().clone(), export.collect())
}

/// Changes the offer or the bytes of all entries.
fn change(offer: &mut PrefixOffer, bytes: &mut Vec<u8>, [kind, low, high, value]: [u8; 4]) {
    let size = SENT.1[0].len();
    let place = usize::from(u16::from_le_bytes([low, high])) % bytes.len().max(1);
    match kind % 8 {
        // Fields of a header.
        0 => bytes
            .iter_mut()
            .skip(usize::from(high) % BLOCKS * size + usize::from(low))
            .take(1)
            .for_each(|byte| *byte ^= value),
        1 => bytes.iter_mut().skip(place).take(1).for_each(|byte| *byte ^= value),
        2 => bytes.truncate(place),
        3 => bytes.insert(place.min(bytes.len()), value),
        4 => drop(bytes.splice(place.min(bytes.len()).., SENT.1[usize::from(value) % BLOCKS].clone())),
        5 => {
            let places = size.min(bytes.len());
            bytes.rotate_left(places);
        }
        6 => offer.first_block = usize::from(value),
        _ => offer.blocks = usize::from(value) % (BLOCKS + 2),
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&piece, changes)) = input.split_first() else { return };
    let (mut offer, mut bytes) = (SENT.0.clone(), SENT.1.concat());
    for &record in changes.as_chunks().0.iter().take(MOST_CHANGES) {
        change(&mut offer, &mut bytes, record);
    }
    let engine = engine();
    let mut import = engine.import_prefix(&Tenant::root(), &PROMPT).expect("transfers are on");
    let taken = import
        .accept(&offer)
        .and_then(|()| bytes.chunks(usize::from(piece) * 64 + 1).try_for_each(|piece| import.push(piece)));
    let is_complete = taken.and_then(|()| import.finish()).is_ok();
    let (kept, entries) = export(&engine);
    assert!(!is_complete || kept.blocks == offer.first_block + offer.blocks);
    assert_eq!(entries[..], SENT.1[..kept.blocks]);
});
