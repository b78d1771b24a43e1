use std::sync::Arc;

use flambeau_tensor::Tensor;
use tempfile::{TempDir, tempdir};

use super::*;

const MODEL: Fingerprint = [3; 32];

/// A temporary folder and the warnings about its files.
struct Place {
    folder: TempDir,
    warnings: Arc<Mutex<Vec<String>>>,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempdir().unwrap(), warnings: Arc::default() }
    }

    fn open(&self, limit: u64) -> (DiskCache, DiskWriter) {
        let warnings = Arc::clone(&self.warnings);
        DiskCache::open(self.folder.path(), limit, move |text| warnings.lock().unwrap().push(text.to_owned())).unwrap()
    }

    /// Simulates one process that uses the texts of a model.
    fn visit<T>(&self, limit: u64, model: Fingerprint, can_truncate: bool, work: impl FnOnce(&DiskTexts) -> T) -> T {
        let (cache, writer) = self.open(limit);
        let texts = DiskTexts { cache, model, can_truncate };
        let done = work(&texts);
        drop(texts);
        writer.join();
        done
    }

    fn keep(&self, limit: u64, texts: &[&[u32]]) {
        self.visit(limit, MODEL, true, |disk| texts.iter().for_each(|ids| disk.put(ids, &snapshot(ids))));
    }

    fn reach(&self, prompt: &[u32]) -> usize {
        self.visit(u64::MAX, MODEL, true, |disk| disk.best(text(prompt)).map_or(0, |(_, reach)| reach))
    }

    /// The text files, oldest first.
    fn files(&self) -> Vec<PathBuf> {
        let paths = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "text")).collect();
        files.sort();
        files
    }

    fn bytes(&self) -> u64 {
        self.files().iter().map(|file| file.metadata().unwrap().len()).sum()
    }

    fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock().unwrap())
    }
}

fn text(ids: &[u32]) -> Text<'_> {
    ids.into()
}

/// A snapshot whose state contains the tokens.
fn snapshot(ids: &[u32]) -> Snapshot {
    Snapshot { position: ids.len(), adapters: Adapters::default(), state: vec![Tensor::from_slice(ids, &[ids.len(), 1]).unwrap()] }
}

#[test]
fn texts_outlive_the_process() {
    let place = Place::new();
    place.keep(u64::MAX, &[&[1, 2, 3, 4], &[1, 9]]);
    let (found, reach) = place.visit(u64::MAX, MODEL, true, |disk| disk.best(text(&[1, 2, 3, 7, 7]))).unwrap();
    assert_eq!((found.position(), reach), (4, 3));
    assert_eq!(found.state[0].aligned().as_slice::<u32>().unwrap(), [1, 2, 3, 4]);
    // States that cannot be truncated only serve whole texts.
    let whole = |prompt: &[u32]| place.visit(u64::MAX, MODEL, false, |disk| disk.best(text(prompt)).map_or(0, |(_, reach)| reach));
    assert_eq!([whole(&[1, 2, 3, 7, 7]), whole(&[1, 2, 3, 4, 7]), whole(&[1, 9, 1])], [0, 4, 2]);
    assert_eq!(place.warnings(), [""; 0]);
}

#[test]
fn a_longer_text_takes_the_place_of_its_beginning() {
    let place = Place::new();
    place.keep(u64::MAX, &[&[1, 2], &[5], &[1, 2, 3], &[1, 2], &[1, 2, 3]]);
    assert_eq!((place.files().len(), place.reach(&[1, 2, 3, 4]), place.reach(&[5, 5])), (2, 3, 1));
}

#[test]
fn the_text_that_was_not_used_for_longest_goes_first() {
    let place = Place::new();
    let texts: [&[u32]; 3] = [&[1; 8], &[2; 8], &[3; 8]];
    place.keep(u64::MAX, &texts);
    let each = place.bytes() / 3;
    // Uses and their order survive the process too.
    assert_eq!(place.reach(&[1; 9]), 8);
    place.keep(3 * each, &[&[4; 8]]);
    assert_eq!([1, 2, 3, 4].map(|id| place.reach(&[id; 9])), [8, 0, 8, 8]);
    assert_eq!(place.bytes(), 3 * each);
    place.keep(2 * each, &[]);
    assert_eq!([1, 3, 4].map(|id| place.reach(&[id; 9])), [0, 8, 8], "a smaller bound holds from the start");
    place.keep(2 * each, &[&[5; 1000]]);
    assert_eq!([3, 4].map(|id| place.reach(&[id; 9])), [8, 8], "what never fits drives nothing out");
}

#[test]
fn what_cannot_be_used_is_ignored_with_a_warning() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 4] = [
        ("checksum", |file| *file.last_mut().unwrap() ^= 1),
        ("ends too early", |file| file.truncate(file.len() - 1)),
        ("ends too early", |file| file.truncate(20)),
        ("no copy of a text", |file| *file = b"something else".to_vec()),
    ];
    for (expected, damage) in damages {
        let place = Place::new();
        place.keep(u64::MAX, &[&[1, 2, 3]]);
        let path = &place.files()[0];
        let mut file = fs::read(path).unwrap();
        damage(&mut file);
        fs::write(path, file).unwrap();
        place.visit(u64::MAX, MODEL, true, |disk| {
            assert!((0..3).all(|_| disk.best(text(&[1, 2, 3, 4])).is_none()));
            assert!(!disk.holds(text(&[1, 2])));
            // The text can be cached again although the damaged file exists.
            disk.put(&[1, 2, 3], &snapshot(&[1, 2, 3]));
        });
        let warnings = place.warnings();
        assert!(warnings.len() == 1 && warnings[0].contains(expected), "{warnings:?}");
        assert_eq!((place.files().len(), place.reach(&[1, 2, 3, 4])), (2, 3));
    }
}

#[test]
fn models_have_texts_of_their_own_and_one_bound() {
    let place = Place::new();
    place.keep(u64::MAX, &[&[1, 2, 3]]);
    let size = place.bytes();
    // File names contain only the fingerprint's first eight bytes.
    let mut other = MODEL;
    other[31] = 9;
    for model in [[4; 32], other] {
        assert!(place.visit(u64::MAX, model, true, |disk| disk.best(text(&[1, 2, 3, 4]))).is_none());
    }
    assert!(matches!(&place.warnings()[..], [one] if one.contains("another model")));
    place.visit(size, [4; 32], true, |disk| disk.put(&[7, 8, 9], &snapshot(&[7, 8, 9])));
    assert_eq!((place.reach(&[1, 2, 3, 4]), place.files().len()), (0, 1));
}

#[test]
fn a_folder_has_one_process_and_keeps_what_is_not_ours() {
    let place = Place::new();
    let notes = place.folder.path().join("notes.txt");
    fs::write(&notes, "mine").unwrap();
    fs::write(place.folder.path().join(".unfinished-x"), "half").unwrap();
    let (cache, writer) = place.open(0);
    let error = DiskCache::open(place.folder.path(), 0, |_| ()).unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    drop(cache);
    writer.join();
    drop(place.open(0));
    let names: Vec<_> = fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(notes.exists() && names.len() == 2, "{names:?}");
}

#[cfg(unix)]
#[test]
fn only_the_owner_reads_texts() {
    use std::os::unix::fs::PermissionsExt;

    let base = tempdir().unwrap();
    let folder = base.path().join("new/texts");
    let (cache, writer) = DiskCache::open(&folder, u64::MAX, |_| ()).unwrap();
    DiskTexts { cache, model: MODEL, can_truncate: true }.put(&[1], &snapshot(&[1]));
    writer.join();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let texts = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let texts: Vec<PathBuf> = texts.filter(|path| path.extension().is_some()).collect();
    assert!(texts.len() == 1 && mode(&texts[0]) == 0o600);
}

#[test]
fn names_are_read_as_they_are_written() {
    let name = Name::parse("0303030303030303-00000000000000ff.text").unwrap();
    assert_eq!(name.to_string(), "0303030303030303-00000000000000ff.text");
    for other in ["", ".text", "3-ff.text", "0303030303030303-00000000000000FF.text", "+303030303030303-00000000000000ff.text"] {
        assert_eq!(Name::parse(other), None, "{other}");
    }
}
