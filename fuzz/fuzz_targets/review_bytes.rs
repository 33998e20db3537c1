#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pillion_fuzz::targets::review_bytes(bytes));
