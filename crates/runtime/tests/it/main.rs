//! Tests of methods in programs that the tests write.

mod instructions;
mod methods;
mod support;
mod verify;
