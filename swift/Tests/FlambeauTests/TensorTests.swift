import Flambeau
import XCTest

final class TensorTests: XCTestCase {
  func testCopiesElements() throws {
    let tensor = try Tensor<Int32>([1, -2, 3, 4, 5, 6], shape: [2, 3])
    XCTAssertEqual(tensor.shape, [2, 3])
    XCTAssertEqual(tensor.count, 6)
    XCTAssertEqual(tensor.scalars(), [1, -2, 3, 4, 5, 6])
    XCTAssertEqual(tensor.anyTensor.dataType, .int)
    XCTAssertEqual(try Tensor([true, false]).scalars(), [true, false])
    XCTAssertEqual(try Tensor<Float>([]).shape, [0])
  }

  func testFillsWithoutACopy() throws {
    var address: UnsafeRawPointer?
    let tensor = try Tensor<Double>(shape: [2, 2]) { elements in
      address = UnsafeRawPointer(elements.baseAddress)
      elements[3] = 7
    }
    XCTAssertEqual(tensor.scalars(), [0, 0, 0, 7])
    tensor.withUnsafeBytes { XCTAssertEqual(UnsafeRawPointer($0.baseAddress), address) }
    XCTAssertEqual(try Tensor<Float>.full(shape: [3], scalar: 0.5).scalars(), [0.5, 0.5, 0.5])
    XCTAssertEqual(try Tensor<UInt8>.zeros(shape: [0, 4]).scalars(), [])
  }

  func testReleasesBorrowedMemoryOnce() throws {
    let memory = UnsafeMutableRawBufferPointer.allocate(byteCount: 8, alignment: 8)
    defer { memory.deallocate() }
    memory.storeBytes(of: 9, as: Int64.self)
    let released = Counter()
    do {
      let tensor = try AnyTensor(
        bytesNoCopy: UnsafeRawBufferPointer(memory), shape: [1], dataType: .long, release: released.add)
      XCTAssertEqual(try Tensor<Int64>(tensor).scalars(), [9])
      XCTAssertEqual(released.count, 0)
    }
    XCTAssertEqual(released.count, 1)
    for (shape, reason) in [([2], "has 16 bytes, found 8"), ([-1], "negative")] {
      assertFails(
        .input, reason,
        try AnyTensor(
          bytesNoCopy: UnsafeRawBufferPointer(memory), shape: shape, dataType: .long, release: released.add))
    }
    XCTAssertEqual(released.count, 3)
  }

  func testRefusesWrongShapesAndTypes() throws {
    assertFails(.input, "found 12", try Tensor<Float>([1, 2, 3], shape: [2]))
    assertFails(.input, "negative", try Tensor<Float>([1], shape: [-1]))
    assertFails(.input, "too many", try Tensor<Float>.zeros(shape: [Int.max, 2]))
    assertFails(.input, "expected i64", try Tensor<Int64>(Tensor<Float>([1]).anyTensor))
  }

  func testSizesOfTypesAgreeWithSwift() {
    func agrees<Element: Scalar>(_: Element.Type) {
      XCTAssertEqual(Element.dataType.size, MemoryLayout<Element>.stride, "\(Element.self)")
    }
    agrees(UInt8.self)
    agrees(Int8.self)
    agrees(Int16.self)
    agrees(Int32.self)
    agrees(Int64.self)
    agrees(Int.self)
    agrees(Float.self)
    agrees(Double.self)
    agrees(Bool.self)
    agrees(UInt16.self)
    agrees(UInt32.self)
    agrees(UInt64.self)
    agrees(UInt.self)
    for type in DataType.allCases { XCTAssertFalse(type.description.isEmpty) }
  }
}

final class Counter: @unchecked Sendable {
  private let lock = NSLock()
  private var calls = 0
  var count: Int { lock.withLock { calls } }
  @Sendable func add() { lock.withLock { calls += 1 } }
}
