import CFlambeau

/// Types of elements, with the names and numbers of ExecuTorch.
public enum DataType: Int32, Sendable, CaseIterable {
  case byte = 0
  case char = 1
  case short = 2
  case int = 3
  case long = 4
  case half = 5
  case float = 6
  case double = 7
  case complexHalf = 8
  case complexFloat = 9
  case bool = 11
  case bFloat16 = 15
  case float8_e5m2 = 23
  case float8_e4m3fn = 24
  case uInt16 = 27
  case uInt32 = 28
  case uInt64 = 29
  case float8_e8m0fnu = 44

  /// Bytes of one element.
  public var size: Int { flb_dtype_size(rawValue) }
}

extension DataType: CustomStringConvertible {
  /// The library's name of the type, such as "f32".
  public var description: String { String(cString: flb_dtype_name(rawValue)) }
}

/// A type of Swift that is the element of a tensor. It must not have pointers or padding.
public protocol Scalar: Sendable {
  static var dataType: DataType { get }
  /// The element that tensors of zeros have.
  static var zero: Self { get }
}

extension UInt8: Scalar { public static var dataType: DataType { .byte } }
extension Int8: Scalar { public static var dataType: DataType { .char } }
extension Int16: Scalar { public static var dataType: DataType { .short } }
extension Int32: Scalar { public static var dataType: DataType { .int } }
extension Int64: Scalar { public static var dataType: DataType { .long } }
extension Float: Scalar { public static var dataType: DataType { .float } }
extension Double: Scalar { public static var dataType: DataType { .double } }
extension UInt16: Scalar { public static var dataType: DataType { .uInt16 } }
extension UInt32: Scalar { public static var dataType: DataType { .uInt32 } }
extension UInt64: Scalar { public static var dataType: DataType { .uInt64 } }

extension Bool: Scalar {
  public static var dataType: DataType { .bool }
  public static var zero: Bool { false }
}

#if arch(arm64) || os(Linux)
extension Float16: Scalar { public static var dataType: DataType { .half } }
#endif

#if arch(arm64) || arch(x86_64)
extension Int: Scalar { public static var dataType: DataType { .long } }
extension UInt: Scalar { public static var dataType: DataType { .uInt64 } }
#endif
