use flambeau_tensor::f16;

use super::*;

#[test]
fn stored_bytes_need_not_be_aligned() {
    let numbers = [1.5f32, -2.0, 0.25];
    let stored: Vec<u8> = numbers.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
    for shift in 0..2 {
        let bytes = Bytes::from([vec![0; shift], stored.clone()].concat()).slice(shift..);
        let tensor = CheckpointTensor::plain("w", DType::F16, vec![3], bytes).unwrap();
        assert_eq!(tensor.values("w").unwrap(), numbers);
        for dtype in [DType::F16, DType::F32, DType::BF16] {
            let Read::Plain(weight) = tensor.read("w", dtype, None).unwrap() else { panic!("the tensor is plain") };
            let wide = cast(&weight.tensor().unwrap(), DType::F32).unwrap();
            assert_eq!(wide.as_slice::<f32>().unwrap(), numbers, "{dtype} from byte {shift}");
        }
    }
}

/// Rows of `f32` numbers: ten times the row's index plus the column's index.
fn matrix(rows: usize, cols: usize) -> CheckpointTensor {
    let numbers = (0..rows).flat_map(|r| (0..cols).map(move |c| (10 * r + c) as f32));
    let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    CheckpointTensor::plain("w", DType::F32, vec![rows, cols], bytes.into()).unwrap()
}

fn numbers(weight: &Weight) -> Vec<f32> {
    cast(&weight.tensor().unwrap(), DType::F32).unwrap().as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn listed_rows_are_read_in_their_order() {
    let listed = matrix(4, 2).rows("w", vec![3, 1]).unwrap();
    for dtype in [DType::F32, DType::F16] {
        let Read::Plain(weight) = listed.read("w", dtype, None).unwrap() else { panic!("the tensor is plain") };
        assert_eq!((weight.shape(), numbers(&weight)), (&[2, 2][..], vec![30.0, 31.0, 10.0, 11.0]));
    }
    assert!(matrix(4, 2).rows("w", vec![4]).is_err());
}

#[test]
fn listed_rows_of_packed_matrices_take_their_scales_along() {
    let bytes = |rows: usize, each: usize| Bytes::from((0..rows).flat_map(|r| vec![r as u8; each]).collect::<Vec<_>>());
    let codes = Codes { mode: Mode::Mxfp4, bits: 4, group: 32 };
    let packed = CheckpointTensor::packed("w", vec![3, 32], [bytes(3, 16), bytes(3, 1)], None, DType::U8, codes).unwrap();
    let Read::Packed(read) = packed.rows("w", vec![2, 0]).unwrap().read("w", DType::F32, None).unwrap() else {
        panic!("the tensor is packed")
    };
    let rows = |weight: &Weight| weight.tensor().unwrap().bytes().to_vec();
    assert_eq!((rows(&read.words), rows(&read.scales)), ([vec![2; 16], vec![0; 16]].concat(), vec![2, 0]));
    assert!(read.biases.is_none());
    let half = Codes { group: 16, ..codes };
    assert!(CheckpointTensor::packed("w", vec![3, 32], [bytes(3, 16), bytes(3, 2)], None, DType::U8, half).is_err());
}

#[test]
fn stacked_parts_follow_one_another() {
    let (a, b) = (matrix(1, 2), matrix(2, 2).slice(1, 1).unwrap());
    let stack = CheckpointTensor::stack("w", &[vec![&a, &b], vec![&b, &a]]).unwrap();
    let Read::Plain(weight) = stack.read("w", DType::BF16, None).unwrap() else { panic!("the tensor is plain") };
    assert_eq!((weight.shape(), numbers(&weight)), (&[2, 2, 2][..], vec![0.0, 1.0, 10.0, 11.0, 10.0, 11.0, 0.0, 1.0]));
    let second = stack.slice(1, 1).unwrap();
    let Read::Plain(weight) = second.read("w", DType::F32, None).unwrap() else { panic!("the tensor is plain") };
    assert_eq!(numbers(&swapped(weight)), [10.0, 0.0, 11.0, 1.0]);
    assert!(CheckpointTensor::stack("w", &[vec![&a], vec![&matrix(2, 2)]]).is_err());
}
