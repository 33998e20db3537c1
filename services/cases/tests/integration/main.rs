//! Tests of shipped profiles against the results of other injectors.

mod peers;
