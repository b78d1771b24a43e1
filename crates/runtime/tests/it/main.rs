//! Methods of programs that the tests write.

mod instructions;
mod methods;
mod support;
