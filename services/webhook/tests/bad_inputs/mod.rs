//! Tests bad inputs, each with its expected result, in process and over a TLS socket.
//!
//! No input may cause a panic, or leave a request in flight or memory in use. Each outcome is counted under one of a
//! fixed set of names. The next valid review is answered, on the same connection unless the response closed it.
//!
//! Failures report a test case with its number, such as `B34`. Test cases for the same mistake share a number.

mod connections;
mod pods;
mod requests;
mod table;
