//! Decodes a `.pte` file with the nodes of its MLX payloads, or a `.ptd` file, and writes it again:
//! `reencode IN OUT`.

use std::{
    env,
    error::Error,
    fs,
    fs::File,
    io::{BufWriter, Write},
};

use flambeau_tensor::Bytes;
use flambeau_wire::{Blob, ProgramWriter, mlx, ptd, read_program};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [input, output] = &args[..] else { return Err("usage: reencode IN OUT".into()) };
    let file = Bytes::from(fs::read(input)?);
    let mut out = BufWriter::new(File::create(output)?);
    let len = if input.ends_with(".ptd") { data_file(&file, &mut out)? } else { program(&file, &mut out)? };
    println!("{output}: {len} bytes");
    Ok(())
}

fn program(file: &Bytes, out: &mut dyn Write) -> Result<u64, Box<dyn Error>> {
    let program = read_program(file)?;
    let mut payloads = Vec::new();
    for delegate in program.plans.iter().flat_map(|p| &p.delegates) {
        let payload = program.delegate_payload(delegate);
        payloads.push(match delegate.id.as_str() {
            "MLXBackend" => mlx::encode(&flambeau_ir::check(mlx::decode(&payload)?)?).into(),
            _ => payload,
        });
    }
    let mut next = payloads.into_iter();
    let writer = ProgramWriter::from_program(&program, |_, old| Ok(Blob::from_bytes(next.next().unwrap_or(old))))?;
    Ok(writer.write(out)?)
}

fn data_file(file: &Bytes, out: &mut dyn Write) -> Result<u64, Box<dyn Error>> {
    let data = ptd::read_data_file(file)?;
    let mut writer = ptd::DataFileWriter::new();
    for (key, entry) in &data.entries {
        writer.add(key, Blob::from_bytes(data.get(key).unwrap_or_default()), entry.layout.clone())?;
    }
    Ok(writer.write(out)?)
}
