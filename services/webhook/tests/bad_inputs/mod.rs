//! Tests bad inputs, each with its expected result, in process and over a TLS socket.
//!
//! No input causes a panic, or leaves a request in flight or memory in use. Each outcome is counted under a name of a
//! closed set. The next good review is answered, on the same connection unless the response closed it.
//!
//! Failures report a case with its number, such as `B34`. Cases that vary the same mistake share a number.

mod connections;
mod pods;
mod requests;
mod table;
