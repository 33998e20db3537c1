//! Test cases of profiles, run against the results of other injectors.

mod peers;
