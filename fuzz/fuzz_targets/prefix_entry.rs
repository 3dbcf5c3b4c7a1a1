//! Parses any bytes as the header of a stored prefix; parsed ones round-trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ruvllm_kv_cache::prefix::{Fault, store::EntryHeader};

fuzz_target!(|file: &[u8]| {
    match EntryHeader::parse(file) {
        Ok(header) => {
            let encoded = header.encode();
            assert_eq!(encoded.len(), EntryHeader::bytes(header.tokens.len()));
            assert_eq!(encoded, file[..encoded.len()]);
            // The name identifies key, position and tokens: other tokens give another name.
            let longer = EntryHeader { tokens: [&header.tokens[..], &[0]].concat(), ..header.clone() };
            assert_ne!(longer.id(), header.id());
        }
        Err(Fault::Length { expected, found }) => {
            assert_eq!(found, file.len() as u64);
            assert!(expected > found);
        }
        Err(Fault::Magic | Fault::Version { .. }) => assert!(file.len() >= 8),
        Err(other) => panic!("no fault of a header: {other}"),
    }
});
