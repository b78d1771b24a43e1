import CFlambeau

/// Kinds of values, with the names of ExecuTorch.
public enum ValueTag: Sendable {
  case none, tensor, string, double, integer, boolean

  init(_ kind: flb_value_kind) throws {
    switch Int(kind) {
    case Int(FLB_VALUE_NONE): self = .none
    case Int(FLB_VALUE_TENSOR): self = .tensor
    case Int(FLB_VALUE_INTEGER): self = .integer
    case Int(FLB_VALUE_BOOLEAN): self = .boolean
    case Int(FLB_VALUE_NUMBER): self = .double
    case Int(FLB_VALUE_TEXT): self = .string
    default: throw FlambeauError(kind: .bug, text: "the library has a kind of values with the unknown number \(kind)")
    }
  }
}

/// An argument or a result of a method.
public struct Value: Sendable {
  private enum Content: Sendable {
    case none
    case tensor(AnyTensor)
    case string(String)
    case double(Double)
    case integer(Int64)
    case boolean(Bool)
  }

  private let content: Content

  public init() { content = .none }
  public init(_ tensor: AnyTensor) { content = .tensor(tensor) }
  public init<Element: Scalar>(_ tensor: Tensor<Element>) { content = .tensor(tensor.anyTensor) }
  public init(_ string: String) { content = .string(string) }
  public init(_ double: Double) { content = .double(double) }
  public init(_ integer: Int64) { content = .integer(integer) }
  public init(_ integer: Int) { content = .integer(Int64(integer)) }
  public init(_ boolean: Bool) { content = .boolean(boolean) }

  public var tag: ValueTag {
    switch content {
    case .none: return .none
    case .tensor: return .tensor
    case .string: return .string
    case .double: return .double
    case .integer: return .integer
    case .boolean: return .boolean
    }
  }

  /// The tensor, or nil if the value has another kind.
  public var anyTensor: AnyTensor? {
    guard case .tensor(let tensor) = content else { return nil }
    return tensor
  }

  /// The tensor, or nil if the value has another kind or the elements have another type.
  public func tensor<Element: Scalar>() -> Tensor<Element>? { anyTensor.flatMap { try? Tensor($0) } }

  public var string: String? {
    guard case .string(let string) = content else { return nil }
    return string
  }

  public var double: Double? {
    guard case .double(let double) = content else { return nil }
    return double
  }

  public var integer: Int64? {
    guard case .integer(let integer) = content else { return nil }
    return integer
  }

  public var boolean: Bool? {
    guard case .boolean(let boolean) = content else { return nil }
    return boolean
  }
}

extension Value {
  /// Copies a value of C; a tensor of it is shared.
  init(_ value: flb_value) throws {
    switch try ValueTag(value.kind) {
    case .none: self.init()
    case .tensor: self.init(try AnyTensor(sharing: value.as.tensor))
    case .string: self.init(String(cString: value.as.text))
    case .double: self.init(value.as.number)
    case .integer: self.init(value.as.integer)
    case .boolean: self.init(value.as.boolean != 0)
    }
  }

  /// The value for C. It borrows the tensor, and a text from `texts`.
  func borrowed(_ texts: Texts) throws -> flb_value {
    var value = flb_value()
    switch content {
    case .none: value.kind = flb_value_kind(FLB_VALUE_NONE)
    case .tensor(let tensor):
      value.kind = flb_value_kind(FLB_VALUE_TENSOR)
      value.as.tensor = tensor.handle
    case .string(let string):
      value.kind = flb_value_kind(FLB_VALUE_TEXT)
      value.as.text = try texts.add(string)
    case .double(let double):
      value.kind = flb_value_kind(FLB_VALUE_NUMBER)
      value.as.number = double
    case .integer(let integer):
      value.kind = flb_value_kind(FLB_VALUE_INTEGER)
      value.as.integer = integer
    case .boolean(let boolean):
      value.kind = flb_value_kind(FLB_VALUE_BOOLEAN)
      value.as.boolean = boolean ? 1 : 0
    }
    return value
  }
}
