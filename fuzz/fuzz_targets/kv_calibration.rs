//! Parses any bytes as a KV calibration, with and without a valid checksum; parsed ones round-trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ruvllm_kv_cache::{CalibrationFault, Error, KvCalibration};
use sha2::{Digest, Sha256};

fuzz_target!(|content: &[u8]| {
    let sealed = [content, &Sha256::digest(content)[..]].concat();
    for bytes in [content, &sealed] {
        match KvCalibration::from_bytes(bytes) {
            Ok(calibration) => assert_eq!(calibration.to_bytes(), bytes),
            Err(Error::Calibration(CalibrationFault::Length { expected, found })) => {
                assert_eq!(found, bytes.len() as u64);
                assert_ne!(expected, found);
            }
            Err(Error::Calibration(_)) => {}
            Err(other) => panic!("no fault of a calibration: {other}"),
        }
    }
});
