#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pillion_fuzz::targets::profile_yaml(bytes));
