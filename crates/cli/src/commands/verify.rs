//! `flambeau verify`: the first node whose result differs.

pub(crate) mod by_value;
mod captures;
pub(crate) mod expected;
pub(crate) mod print;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    engine::{Engine, KvCacheConfig, LoadOptions},
    pt2::{Archive, Exported},
    runtime::{
        Method, Program, Value,
        verify::{self, Verdict, random_inputs},
    },
    tensor::Tolerance,
    wire::bundled::{BundledProgram, read_bundled_program},
};

use self::print::MethodVerdict;
use crate::{
    count::positive,
    engine::EngineArgs,
    failure::{hint, usage},
    file_kind::{FileKind, ProgramArgs},
    files, inputs, kv_cache, outputs, pytorch,
    source_map::SourceMap,
    tensors,
};

/// Bounds of random integers, from the first that the method accepts.
const BOUNDS: [u32; 3] = [100, 8, 1];

/// Find the first node whose result differs between engines, programs, or from expected tensors
///
/// Every node runs alone on the CPU engine, fused nodes in their decomposed form. The engine under
/// test gets the same operands, and then runs the whole method. A bundled program (.bpte) brings
/// its own inputs and expected outputs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  flambeau verify model.pte --engine mlx\n  flambeau verify quantized.pte --against model.pte\n  \
    flambeau verify model.pte --reference model.pt2 --python .venv/bin/python\n  flambeau verify model.bpte --json"
)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,

    /// Method to verify; by default each method that computes, or that has test cases. Comparisons
    /// with archives and folders take `forward`
    #[arg(long, value_name = "NAME")]
    method: Option<String>,

    /// Compare with another program: node by node, or by values where its nodes are others
    #[arg(help_heading = "Comparison", long, value_name = "FILE.pte", conflicts_with_all = ["reference", "captures"])]
    against: Option<PathBuf>,

    /// Compare with PyTorch's results of each call of an archive
    #[arg(help_heading = "Comparison", long, value_name = "FILE.pt2", conflicts_with = "captures")]
    reference: Option<PathBuf>,

    /// Compare with the tensors of a folder that --record wrote, or with `input` and
    /// `expected_output` of an op test
    #[arg(help_heading = "Comparison", long, value_name = "FOLDER")]
    captures: Option<PathBuf>,

    /// Archive that the program was compiled from, to name source lines
    #[arg(help_heading = "Comparison", long, value_name = "FILE.pt2")]
    source: Option<PathBuf>,

    /// Write the inputs, the outputs and the results of all nodes of the last run to a folder
    #[arg(help_heading = "Comparison", long, value_name = "FOLDER", conflicts_with_all = ["captures", "reference", "against"])]
    record: Option<PathBuf>,

    /// Cache of a program that leaves it to its host: capacity,layers,kv_heads,head_dim[,dtype], or
    /// JSON with the sizes of each layer
    #[arg(long, value_name = "SPEC", value_parser = kv_cache::parse)]
    kv_cache: Option<KvCacheConfig>,

    /// Allowed error relative to each element; by default, the rounding of the type
    #[arg(help_heading = "Comparison", long, value_name = "X", requires = "atol")]
    rtol: Option<f64>,

    /// Allowed absolute error
    #[arg(help_heading = "Comparison", long, value_name = "X", requires = "rtol")]
    atol: Option<f64>,

    /// File with inputs: .bin, .npy, .npz or .safetensors; repeat it for more. Without it, inputs
    /// are random
    #[arg(help_heading = "Inputs", short, long = "input", value_name = "FILE")]
    inputs: Vec<PathBuf>,

    /// Number of random inputs, one run after another
    #[arg(help_heading = "Inputs", long, value_name = "N", default_value = "2", value_parser = positive, conflicts_with = "inputs")]
    runs: usize,

    /// Seed of the random inputs
    #[arg(help_heading = "Inputs", long, value_name = "N", default_value = "0")]
    seed: u32,

    /// Random integers are below this bound, such as the size of a vocabulary
    #[arg(help_heading = "Inputs", long, value_name = "N", conflicts_with = "inputs")]
    bound: Option<u32>,

    /// Python that has PyTorch
    #[arg(long, value_name = "PROGRAM", default_value = "python3", requires = "reference")]
    python: PathBuf,

    #[command(flatten)]
    engine: EngineArgs,

    /// Print a JSON object instead of lines
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(folder) = &args.record {
        outputs::check(&[folder], args.program.paths().chain(args.inputs.iter().map(PathBuf::as_path)))?;
    }
    let subject = Subject::open(args)?;
    if subject.bundle.is_some() && args.record.is_some() {
        return Err(usage("--record writes the results of inputs on the command line, not of test cases"));
    }
    let verdicts = match (&subject.bundle, &args.against, &args.reference, &args.captures) {
        (Some(bundle), None, None, None) => subject.test_cases(bundle)?,
        (_, Some(against), ..) => subject.against(against)?,
        (_, _, Some(archive), _) => vec![subject.reference(archive)?],
        (_, _, _, Some(folder)) => vec![subject.captures(folder)?],
        _ => subject.engines()?,
    };
    print::verdicts(&verdicts, args.json)?;
    Ok(ExitCode::from(u8::from(!verdicts.iter().all(MethodVerdict::agrees))))
}

/// The program under test.
struct Subject<'a> {
    args: &'a Args,
    program: Program,
    bundle: Option<BundledProgram>,
    tested: Arc<dyn Engine>,
    /// Runs single nodes.
    cpu: Arc<dyn Engine>,
}

impl<'a> Subject<'a> {
    fn open(args: &'a Args) -> Result<Subject<'a>> {
        let path = &args.program.program;
        let (program, bundle) = match FileKind::of_file(path) {
            Some(FileKind::Bundled) => {
                let bundle = read_bundled_program(&files::read(path)?).with_context(|| path.display().to_string())?;
                (args.program.of_bytes(bundle.program.clone())?, Some(bundle))
            }
            _ => (args.program.open()?, None),
        };
        let cpu = flambeau::engines(args.engine.threads, false).get("cpu")?;
        Ok(Subject { args, program, bundle, tested: args.engine.engine(false)?, cpu })
    }

    /// The method of comparisons that take one.
    fn method(&self) -> &str {
        self.args.method.as_deref().unwrap_or("forward")
    }

    /// The methods to verify.
    ///
    /// # Errors
    /// Inputs or a folder of recordings are given, which suit one method.
    fn methods(&self) -> Result<Vec<&str>> {
        if let Some(method) = &self.args.method {
            return Ok(vec![method]);
        }
        let methods: Vec<&str> = self.program.computing_methods().collect();
        let of_one = if self.args.inputs.is_empty() { self.args.record.is_some().then_some("--record") } else { Some("--input") };
        match (of_one, &methods[..]) {
            (_, []) => bail!("{} has no method that computes", self.args.program.program.display()),
            (Some(flag), [_, _, ..]) => {
                Err(usage(format!("{flag} is for one method: choose it by --method among {}", methods.join(", "))))
            }
            _ => Ok(methods),
        }
    }

    fn options(&self) -> LoadOptions {
        LoadOptions { kv_cache: self.args.kv_cache.clone(), ..LoadOptions::default() }
    }

    fn tolerance(&self) -> Option<Tolerance> {
        Some(Tolerance { relative: self.args.rtol?, absolute: self.args.atol? })
    }

    /// The source lines of a method, if an archive is given.
    fn source(&self, method: &str) -> Result<Option<SourceMap>> {
        let Some(path) = self.args.source.as_ref().or(self.args.reference.as_ref()) else { return Ok(None) };
        SourceMap::new(&self.program, method, &archive(path)?, &*self.cpu).map(Some)
    }

    /// The inputs of the command line, or random ones that the method accepts.
    fn inputs(&self, method: &str) -> Result<Vec<Vec<Value>>> {
        let mut method = self.program.method(method, &self.tested, &self.options())?;
        if !self.args.inputs.is_empty() {
            let mut given = Vec::new();
            for path in &self.args.inputs {
                given.extend(tensors::read(path)?);
            }
            return Ok(vec![inputs::arguments(method.inputs(), given)?]);
        }
        random_runs(&mut method, self.args.runs, self.args.seed, self.args.bound)
    }

    /// Both engines on the same inputs.
    fn engines(&self) -> Result<Vec<MethodVerdict>> {
        self.methods()?
            .into_iter()
            .map(|method| self.method_on_engines(method).with_context(|| format!("method `{method}`")))
            .collect()
    }

    fn method_on_engines(&self, method: &str) -> Result<MethodVerdict> {
        let runs = self.inputs(method)?;
        let engines = [&self.tested, &self.cpu];
        let verdict = verify::check(&self.program, method, engines, &runs, self.tolerance(), &self.options())?;
        if let Some(folder) = &self.args.record {
            let recording = verify::record(&self.program, method, &self.cpu, &runs, &self.options())?;
            captures::write(folder, &runs, &recording)?;
        }
        self.judged(method, runs.len(), verdict)
    }

    fn judged(&self, method: &str, runs: usize, verdict: Verdict) -> Result<MethodVerdict> {
        Ok(MethodVerdict { method: method.to_owned(), runs, verdict, source: self.source(method)? })
    }

    /// The other program on the same inputs, each node by itself.
    fn against(&self, path: &Path) -> Result<Vec<MethodVerdict>> {
        let other = FileKind::Program.expect(path, || Ok(Program::open(path)?))?;
        let judge = |method| self.method_against(method, &other).with_context(|| format!("method `{method}`"));
        self.methods()?.into_iter().map(judge).collect()
    }

    fn method_against(&self, method: &str, other: &Program) -> Result<MethodVerdict> {
        let runs = self.inputs(method)?;
        let record = |program: &Program| verify::record(program, method, &self.cpu, &runs, &self.options());
        let (own, other) = (record(&self.program)?, record(other)?);
        let verdict = by_value::programs((&self.program, method), [&own, &other], self.tolerance())?;
        self.judged(method, runs.len(), verdict)
    }

    fn reference(&self, path: &Path) -> Result<MethodVerdict> {
        let count = if self.args.inputs.is_empty() { self.args.runs } else { 1 };
        let reference = pytorch::run(&self.args.python, "--reference", path, (count, self.args.seed))?;
        let exported = archive(path)?;
        let map = SourceMap::new(&self.program, self.method(), &exported, &*self.cpu)?;
        let verdict = by_value::pytorch(self, &reference.runs, &exported)?;
        Ok(MethodVerdict { method: self.method().to_owned(), runs: reference.runs.len(), verdict, source: Some(map) })
    }

    fn captures(&self, folder: &Path) -> Result<MethodVerdict> {
        let captures = captures::read(folder)?;
        let verdict = expected::captures(self, captures)?;
        self.judged(self.method(), 1, verdict)
    }

    /// Each test case of a bundled program.
    fn test_cases(&self, bundle: &BundledProgram) -> Result<Vec<MethodVerdict>> {
        let wanted = |name: &str| self.args.method.as_deref().is_none_or(|method| method == name);
        let suites: Vec<_> = bundle.suites.iter().filter(|suite| wanted(&suite.method) && !suite.cases.is_empty()).collect();
        if suites.is_empty() {
            bail!("{} has no test cases of this method", self.args.program.program.display());
        }
        suites.into_iter().map(|suite| self.judged(&suite.method, suite.cases.len(), expected::suite(self, suite)?)).collect()
    }
}

fn archive(path: &Path) -> Result<Exported> {
    FileKind::Archive.expect(path, || Ok(Archive::open(files::read(path)?)?.only_program()?))
}

/// Random inputs of runs that the method accepts. Integers are below `bound`.
pub(crate) fn random_runs(method: &mut Method, runs: usize, seed: u32, bound: Option<u32>) -> Result<Vec<Vec<Value>>> {
    let mut failure = None;
    for bound in bound.map_or(BOUNDS.to_vec(), |bound| vec![bound]) {
        let draw = |run: usize| random_inputs(method, (u64::from(seed) << 32) + run as u64, bound);
        let drawn = (0..runs).map(draw).collect::<Result<Vec<_>, _>>()?;
        let refused = drawn.iter().find_map(|inputs| method.run(inputs).err());
        method.reset();
        match refused {
            None => return Ok(drawn),
            Some(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        Some(error) => Err(hint(error, "random inputs do not suit this method; give some by --input")),
        None => bail!("there are no inputs"),
    }
}
