/// A type whose instances can be arguments of a method.
public protocol ValueConvertible {
  func asValue() -> Value
}

extension Value: ValueConvertible { public func asValue() -> Value { self } }
extension AnyTensor: ValueConvertible { public func asValue() -> Value { Value(self) } }
extension Tensor: ValueConvertible { public func asValue() -> Value { Value(self) } }
extension String: ValueConvertible { public func asValue() -> Value { Value(self) } }
extension Double: ValueConvertible { public func asValue() -> Value { Value(self) } }
extension Float: ValueConvertible { public func asValue() -> Value { Value(Double(self)) } }
extension Int: ValueConvertible { public func asValue() -> Value { Value(self) } }
extension Int64: ValueConvertible { public func asValue() -> Value { Value(self) } }
extension Int32: ValueConvertible { public func asValue() -> Value { Value(Int64(self)) } }
extension Bool: ValueConvertible { public func asValue() -> Value { Value(self) } }

/// A type that a method's results can become.
public protocol ValueSequenceConstructible {
  /// Throws an error of the kind `execution` if number or kinds of the results differ.
  init(values: [Value]) throws
}

extension Tensor: ValueSequenceConstructible {
  public init(values: [Value]) throws {
    guard let tensor = try only(values).anyTensor else { throw differs(values, "a tensor") }
    try self.init(tensor)
  }
}

extension String: ValueSequenceConstructible {
  public init(values: [Value]) throws {
    guard let string = try only(values).string else { throw differs(values, "a text") }
    self = string
  }
}

extension Double: ValueSequenceConstructible {
  public init(values: [Value]) throws {
    guard let double = try only(values).double else { throw differs(values, "a number") }
    self = double
  }
}

extension Int: ValueSequenceConstructible {
  public init(values: [Value]) throws {
    guard let integer = try only(values).integer else { throw differs(values, "an integer") }
    self = Int(integer)
  }
}

extension Bool: ValueSequenceConstructible {
  public init(values: [Value]) throws {
    guard let boolean = try only(values).boolean else { throw differs(values, "a boolean") }
    self = boolean
  }
}

private func only(_ values: [Value]) throws -> Value {
  guard let value = values.first, values.count == 1 else {
    throw FlambeauError(kind: .execution, text: "the method gave \(values.count) results, expected one")
  }
  return value
}

private func differs(_ values: [Value], _ expected: String) -> FlambeauError {
  FlambeauError(kind: .execution, text: "the result has the kind \(values[0].tag), expected \(expected)")
}
