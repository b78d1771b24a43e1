//! Runs the method `forward` of a program on one row of numbers.
//!
//! `cargo run --release -p flambeau --example run -- FILE.pte 0.5 -1 0 2`

use std::{env, error::Error};

use flambeau::{
    engine::LoadOptions,
    runtime::{Program, Value},
    tensor::Tensor,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let path = args.next().ok_or("expected FILE.pte and numbers")?;
    let numbers: Vec<f32> = args.map(|text| text.parse()).collect::<Result<_, _>>()?;
    let cpu = flambeau::engines(None, false).get("cpu")?;
    let mut forward = Program::open(&path)?.method("forward", &cpu, &LoadOptions::default())?;
    for output in forward.run(&[Tensor::from_slice(&numbers, &[1, numbers.len()])?.into()])? {
        match &output {
            Value::Tensor(tensor) => println!("{}: {:?}", output.describe(), tensor.as_slice::<f32>()?),
            other => println!("{}", other.describe()),
        }
    }
    Ok(())
}
